"""The stream processor of gangline.progress: what each run's steps say, at most once a second.

```
gangline.steps --stream.py (faust)--> runs.py --publishing.py--> gangline.progress
                                      window.py: rates
```
`window.py` and `runs.py` are pure. Nothing decides on this topic.
"""
