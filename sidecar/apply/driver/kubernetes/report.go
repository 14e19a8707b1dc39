// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxReports is how many reports may wait. Further ones are dropped: conch's own event log has them.
const maxReports = 100

// report is an event of Kubernetes that is to be written.
type report struct {
	partition, kind, message string
	grave                    bool
	time                     time.Time
}

// Report has kubectl describe show on the Pod of a partition what conch's event log says. Kind is an event's, such as partition_down. It does not wait.
func (d *Driver) Report(partition, kind, message string, grave bool, at time.Time) {
	select {
	case d.reports <- report{partition, kind, message, grave, at}:
	default:
		d.b.Logger.Debug("an event is not written to the cluster: too many wait", "event", kind, "partition", partition)
	}
}

// write writes reports until ctx ends.
func (d *Driver) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-d.reports:
			pod := d.latest(r.partition)
			if pod == nil {
				continue
			}
			err := d.change(ctx, func(ctx context.Context) error {
				_, err := d.b.Client.CoreV1().Events(d.b.Namespace).Create(ctx, r.about(pod), meta.CreateOptions{FieldManager: fieldManager})
				return err
			})
			if err != nil {
				d.b.Logger.Debug("an event could not be written to the cluster", "event", r.kind, "partition", r.partition, "error", err)
			}
		}
	}
}

// latest is the Pod of a partition's latest server; nil where there is none.
func (d *Driver) latest(partition string) (last *core.Pod) {
	for _, p := range d.cache.ofPartition(dnsName(partition, 63)) {
		if last == nil || generation(p) > generation(last) {
			last = p
		}
	}
	return last
}

func (r report) about(pod *core.Pod) *core.Event {
	e := &core.Event{
		ObjectMeta:     meta.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: core.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Message:        r.message, Type: core.EventTypeNormal, Count: 1, FirstTimestamp: meta.NewTime(r.time), LastTimestamp: meta.NewTime(r.time),
		Source: core.EventSource{Component: "conch"}, ReportingController: "conch.io/conch",
	}
	if r.grave {
		e.Type = core.EventTypeWarning
	}
	for word := range strings.SplitSeq(r.kind, "_") { // Kubernetes writes reasons so
		if word != "" {
			e.Reason += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return e
}
