// Command kube runs one part of a Kubernetes control plane on this machine, for tests.
//
//	kube etcd|apiserver|controllers|scheduler [FLAG...]
//
// The flags are those of etcd, kube-apiserver, kube-controller-manager and kube-scheduler. The four
// are one program, because linking takes a large part of the time of a build.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func command(part string) *cobra.Command {
	switch part {
	case "apiserver":
		return apiserver.NewAPIServerCommand()
	case "controllers":
		return controllers.NewControllerManagerCommand()
	case "scheduler":
		return scheduler.NewSchedulerCommand()
	}
	return nil
}

func main() {
	if len(os.Args) > 1 {
		os.Args = os.Args[1:]
		if os.Args[0] == "etcd" {
			etcdmain.Main(os.Args)
			return
		}
		if found := command(os.Args[0]); found != nil {
			os.Exit(cli.Run(found))
		}
	}
	os.Stderr.WriteString("usage: kube etcd|apiserver|controllers|scheduler [FLAG...]\n")
	os.Exit(2)
}
