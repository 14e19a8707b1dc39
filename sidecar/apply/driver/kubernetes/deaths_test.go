// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/conch-serving/conch/internal/bubble"
)

// becomes changes the status of a Pod.
func (c *testCluster) becomes(name string, change func(*core.PodStatus)) {
	p := c.pod(name)
	change(&p.Status)
	require.NoError(c.t, c.Tracker().Update(pods, p, namespace))
}

func killed(exit int32, reason string) core.ContainerState {
	return core.ContainerState{Terminated: &core.ContainerStateTerminated{ExitCode: exit, Reason: reason}}
}

// A server that has ended is dead, with the reason, whatever else of its Pod runs, and the Pod goes.
func TestWhyAServerDied(t *testing.T) {
	for name, of := range map[string]struct {
		became func(*core.PodStatus)
		want   string
	}{
		"another container runs on": {func(s *core.PodStatus) {
			s.ContainerStatuses[0].State = killed(137, "OOMKilled")
			s.ContainerStatuses = append(s.ContainerStatuses, core.ContainerStatus{Name: "beside", State: core.ContainerState{Running: &core.ContainerStateRunning{}}})
		}, "tritonserver in pod conch-p-1 ended with exit status 137 (OOMKilled)"},
		"its node has no memory left": {func(s *core.PodStatus) {
			s.Phase, s.Reason, s.Message = core.PodFailed, "Evicted", "The node was low on resource: memory."
			s.ContainerStatuses[0].State = killed(137, "Error")
		}, "pod conch-p-1 has ended: Evicted: The node was low on resource: memory."},
		"its node shuts down": {func(s *core.PodStatus) {
			s.Phase, s.Reason = core.PodSucceeded, "Terminated"
			s.Conditions = append(s.Conditions, core.PodCondition{Type: core.DisruptionTarget, Status: core.ConditionTrue, Reason: "TerminationByKubelet", Message: "Pod was terminated in response to imminent node shutdown."})
			s.ContainerStatuses[0].State = killed(0, "Completed")
		}, "pod conch-p-1 was evicted: Pod was terminated in response to imminent node shutdown."},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("node-1"), slice("node-1"))
			d := open(t, options(c))
			s, err := d.Start(t.Context(), part(t, d, "p", 100))
			require.NoError(t, err)
			c.becomes("conch-p-1", of.became)
			eventually(t, "the server is dead", func() bool { return s.Death() != "" })
			require.Equal(t, of.want, s.Death())
			eventually(t, "the dead Pod goes", func() bool { return len(c.names()) == 0 })
		})
	}
}

// A start that an init container of the template holds up, or ends, names it.
func TestWhyAServerDidNotStart(t *testing.T) {
	waits := core.ContainerStatus{Name: "server", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "PodInitializing"}}}
	for name, of := range map[string]struct {
		becomes func(*core.PodStatus)
		want    string
	}{
		"it fails": {func(s *core.PodStatus) {
			s.Phase = core.PodFailed
			s.InitContainerStatuses = []core.ContainerStatus{{Name: "link", State: killed(0, "Completed")}, {Name: "fetch", State: killed(3, "Error")}}
		}, "init container fetch in pod conch-p-1 ended with exit status 3"},
		"it has no image": {func(s *core.PodStatus) {
			s.InitContainerStatuses = []core.ContainerStatus{{Name: "fetch", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
		}, "pod conch-p-1, container fetch: ImagePullBackOff: no such image"},
		"it does not end": {func(s *core.PodStatus) {
			s.Conditions = append(s.Conditions, core.PodCondition{Type: core.PodInitialized, Status: core.ConditionFalse, Message: "containers with incomplete status: [fetch]"})
			s.InitContainerStatuses = []core.ContainerStatus{{Name: "fetch", State: core.ContainerState{Running: &core.ContainerStateRunning{}}}}
		}, "at the last look: pod conch-p-1, container server: PodInitializing: containers with incomplete status: [fetch]"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := newCluster(t, node("node-1"), slice("node-1"))
				c.silent = true
				d := open(t, options(c))
				failed := make(chan error, 1)
				go func() {
					_, err := d.Start(t.Context(), part(t, d, "p", 100))
					failed <- err
				}()
				time.Sleep(time.Second)
				c.becomes("conch-p-1", func(s *core.PodStatus) {
					s.ContainerStatuses = []core.ContainerStatus{waits}
					of.becomes(s)
				})
				require.ErrorContains(t, <-failed, of.want)
			})
		})
	}
}

// A Pod that is evicted has its reason while it goes, and after that.
func TestWhyAPodWasEvicted(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	leaving := make(chan string, 1)
	o := options(c)
	o.Leaving = func(_, reason string) { leaving <- reason }
	d := open(t, o)
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	c.becomes("conch-p-1", func(s *core.PodStatus) {
		s.Conditions = append(s.Conditions, core.PodCondition{Type: core.DisruptionTarget, Status: core.ConditionTrue, Reason: "PreemptionByScheduler", Message: "preempting to accommodate a higher priority pod"})
	})
	require.NoError(t, c.CoreV1().Pods(namespace).Delete(t.Context(), "conch-p-1", meta.DeleteOptions{}))
	require.Equal(t, "pod conch-p-1 is evicted: preempting to accommodate a higher priority pod", <-leaving)
	<-s.Done()
	require.Equal(t, "pod conch-p-1 was evicted: preempting to accommodate a higher priority pod", s.Death())
}
