"""What tests of several folders use.

- `builders`: events, states and jobs as a test needs them; nothing runs.
- `fixtures`: pytest fixtures of real parts, and marks.
- `fakes`: servers that stand for parts which are not under test.
- `harnesses`: real processes and loops, and what is read from them.
- `attacks`: clients that send what no well-behaved client sends.
"""
