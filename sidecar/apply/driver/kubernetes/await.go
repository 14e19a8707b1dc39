// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/conch-serving/conch/sidecar/apply/driver"
)

const (
	// lookEvery is how often a Pod that starts is looked at, in the cache; events of all that start are asked for each askEvery.
	lookEvery = 50 * time.Millisecond
	askEvery  = 3 * time.Second
	// unplaced is how long the scheduler may find no place: an earlier Pod may be about to give one back.
	unplaced = time.Minute
)

// await waits until a Pod has an address. Its error says what the cluster says.
func (d *Driver) await(ctx context.Context, pod *core.Pod, spec driver.Spec) (*server, error) {
	d.mu.Lock()
	d.awaited[pod.UID] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.awaited, pod.UID)
		d.mu.Unlock()
	}()
	begin, asked := time.Now(), time.Now()
	last, complaint := "the scheduler has not looked at it yet", ""
	for {
		p := d.cache.pod(pod.Name)
		switch {
		case p == nil || p.UID != pod.UID:
			if time.Since(begin) > 10*time.Second {
				if unread := d.cache.podsWatched.unread(); unread != "" {
					return nil, fmt.Errorf("whether pod %s has started is not known: %s", pod.Name, unread)
				}
				return nil, fmt.Errorf("pod %s was deleted while it started", pod.Name)
			}
		case over(p):
			return nil, errors.New(cmp.Or(d.others(p, spec), ended(p)))
		case p.DeletionTimestamp != nil:
			return nil, errors.New(evicted(p))
		case p.Status.PodIP != "" && runs(p):
			d.finds(spec.GPU, spec.Partition.GetNode())
			return d.behind(p, spec)
		default:
			var final bool
			if last, final = waiting(p, time.Since(begin)); final {
				return nil, errors.New(last)
			}
			if time.Since(asked) < askEvery {
				break
			}
			asked = time.Now()
			if others := d.others(p, spec); others != "" {
				return nil, errors.New(others)
			}
			if complaint, final = d.complaint(ctx, p); final {
				return nil, errors.New(complaint)
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("pod %s did not start: %w; at the last look: %s", pod.Name, context.Cause(ctx), cmp.Or(d.cache.podsWatched.unread(), complaint, last))
		case <-time.After(lookEvery):
		}
	}
}

func runs(p *core.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c core.ContainerStatus) bool { return c.Name == serverContainer && c.State.Running != nil })
}

// waiting says what a Pod waits for, and whether that is in vain.
func waiting(p *core.Pod, since time.Duration) (text string, final bool) {
	unready := "" // which init containers have not ended yet
	for _, c := range p.Status.Conditions {
		switch {
		case c.Status != core.ConditionFalse:
		case c.Type == core.PodScheduled:
			return fmt.Sprintf("pod %s has no place: %s", p.Name, cmp.Or(c.Message, c.Reason)), since > unplaced
		case c.Type == core.PodInitialized:
			unready = c.Message
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			text = fmt.Sprintf("pod %s, container %s: %s: %s", p.Name, c.Name, w.Reason, cmp.Or(w.Message, unready))
			return text, slices.Contains([]string{"ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}, w.Reason)
		}
	}
	return fmt.Sprintf("pod %s is on its way (%s)", p.Name, p.Status.Phase), false
}

// complaints are the latest warnings about Pods. One request asks for all of them: a plan for thousands of partitions has thousands of Pods wait at once.
type complaints struct {
	mu     sync.Mutex
	asked  time.Time
	latest map[types.UID]core.Event
}

// of is the latest warning about a Pod, at most askEvery old.
func (c *complaints) of(ctx context.Context, o Options, pod types.UID) (core.Event, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.asked) >= askEvery {
		c.asked = time.Now()
		ctx, cancel := context.WithTimeout(ctx, askEvery) // others wait for the answer, too
		defer cancel()
		warnings := fields.AndSelectors(fields.OneTermEqualSelector("involvedObject.kind", "Pod"), fields.OneTermEqualSelector("type", core.EventTypeWarning))
		list, err := o.Client.CoreV1().Events(o.Namespace).List(ctx, meta.ListOptions{FieldSelector: warnings.String()})
		if err == nil { // else those waits go on with what was known
			c.latest = make(map[types.UID]core.Event, len(list.Items))
			for _, e := range list.Items {
				before, known := c.latest[e.InvolvedObject.UID]
				if e.Type == core.EventTypeWarning && e.Source.Component != "conch" && e.Reason != "FailedScheduling" && (!known || before.LastTimestamp.Before(&e.LastTimestamp)) {
					c.latest[e.InvolvedObject.UID] = e
				}
			}
		}
	}
	e, known := c.latest[pod]
	return e, known
}

// gateMPS is the feature gate of NVIDIA's DRA driver, which its error names where a claim asks for MPS and the gate is not on.
const gateMPS = "MPSSupport"

// complaint is the latest warning about a Pod, and whether it waits in vain. The kubelet tries again to prepare a GPU: the driver may be starting, or the MPS control
// daemon of the claim.
func (d *Driver) complaint(ctx context.Context, p *core.Pod) (text string, final bool) {
	latest, known := d.complaints.of(ctx, d.b.Options, p.UID)
	if !known {
		return "", false
	}
	text = fmt.Sprintf("pod %s: %s: %s", p.Name, latest.Reason, latest.Message)
	if latest.Reason != "FailedPrepareDynamicResources" || !strings.Contains(latest.Message, gateMPS) {
		return text, false
	}
	return text + ". Shares of a GPU need the feature gate " + gateMPS + " of NVIDIA's DRA driver; without it say driver.kubernetes.gpus.sharing: none, and plan whole GPUs", true
}
