// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// fieldManager is conch's name for server-side apply.
const fieldManager = "conch"

// Driver is the driver "kubernetes".
type Driver struct {
	b     build
	cache *cache

	mu sync.Mutex
	// servers by the unique id of their Pods.
	servers map[types.UID]*server
	// generations are the latest of each partition, by its label.
	generations map[string]int
	// condemned are Pods to remove until they are gone, by unique id, with since when.
	condemned map[types.UID]time.Time
	// awaited are Pods whose start is awaited, by unique id: one that has ended is removed after its reason was read.
	awaited map[types.UID]bool
	// doubtful are names of Pods whose creation was not answered, with when that was: the API server may have made them all the same.
	doubtful map[string]time.Time
	// found are the Pods that Find has seen, by unique id, nil before, and made are names of those that this conch has asked for since, with when that was. What else comes
	// is of the conch that led before, whose last requests the API server was slow to answer.
	found map[types.UID]bool
	made  map[string]time.Time
	// idle, keep's alone, is when this conch did not lead the last time.
	idle time.Time
	// claiming counts the starts under way that need a GPU's claim, by the claim's name; or goes.
	claiming map[string]int
	// nodes are those of the last look, and hearing, the look's alone, is what it has seen of them. Vanished, the look's too, is since when nodes offer no GPU that did.
	nodes    []*policy.Node
	hearing  hearing
	vanished map[string]time.Time
	// short are nodes of which Pods find no GPU, and occupied are GPUs that others have, by id. Retry, the look's, is when the next of these may be tried again.
	short    map[string]short
	occupied map[string]occupation
	retry    time.Time
	// wanted is how many GPUs of each type the load wants; nil: it is not known. growsFrom, keep's alone, is when a stand-in may be made again.
	wanted    map[string]int
	growsFrom time.Time
	// likes is how a GPU of a type is asked for, of all that the cluster has had: the last node of a type may be gone.
	likes map[string]likeness

	complaints complaints
	// writing has a place for each of the few changes that are under way at once.
	writing chan struct{}
	reports chan report
	keeping sync.WaitGroup
	stop    context.CancelFunc
}

// New makes the driver, once the objects of the cluster, which Check has found fit for it, are known.
func New(ctx context.Context, o Options) (*Driver, error) {
	template, models, problems := o.normalise()
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("driver.kubernetes: %w", err)
	}
	refused := func(err error) (*Driver, error) { return nil, fmt.Errorf("driver kubernetes: %w", err) }
	d := &Driver{
		b: build{Options: o, template: template, models: models}, servers: map[types.UID]*server{}, generations: map[string]int{},
		condemned: map[types.UID]time.Time{}, awaited: map[types.UID]bool{}, doubtful: map[string]time.Time{}, made: map[string]time.Time{}, claiming: map[string]int{}, likes: map[string]likeness{}, short: map[string]short{}, occupied: map[string]occupation{}, writing: make(chan struct{}, writesAtOnce), reports: make(chan report, maxReports),
	}
	var err error
	if d.b.owner, err = o.OwnedBy(ctx, o.Owner); err != nil {
		return refused(err)
	}
	life, stop := context.WithCancel(context.Background())
	d.stop = stop
	if d.cache, err = watch(ctx, life, o, d.seen, d.gone); err != nil {
		stop()
		return refused(err)
	}
	var remarks []string
	if d.nodes, remarks = d.look(); len(d.nodes) == 0 || free(d.nodes) == 0 {
		err := errors.Join(noGPUs(o, d.nodes, remarks), d.Close())
		return refused(err)
	}
	for _, remark := range remarks {
		o.Logger.Warn("a device is left out", "reason", remark)
	}
	d.keeping.Go(func() { every(life, d.lookAtNodes) }) // which waits for no change
	d.keeping.Go(func() { every(life, d.keep) })
	d.keeping.Go(func() { d.write(life) })
	return d, nil
}

// free counts the GPUs that nobody else has claimed.
func free(nodes []*policy.Node) (n int) {
	for _, node := range nodes {
		for _, g := range node.GetGpus() {
			if !strings.HasPrefix(g.GetUnavailableReason(), "claimed by ") {
				n++
			}
		}
	}
	return n
}

func noGPUs(o Options, nodes []*policy.Node, remarks []string) error {
	if len(nodes) > 0 {
		g := nodes[0].GetGpus()[0]
		return fmt.Errorf("every GPU of the cluster is claimed by others: %s is %s. Two releases share no GPU; give each nodes of its own", g.GetId(), g.GetUnavailableReason())
	}
	text := "no node of the cluster has GPUs: none offers " + o.GPUResource
	if o.DRA {
		text += ", and no ResourceSlice is of driver " + o.GPUDriver
	} else {
		text += ", and the cluster has no resource.k8s.io/v1"
	}
	if len(remarks) > 0 {
		text += " (" + strings.Join(remarks, "; ") + ")"
	}
	return errors.New(text + ". Install NVIDIA's DRA driver or device plugin, or name another with driver.kubernetes.gpus")
}

// Repository is empty: every partition gets a directory of its own.
func (d *Driver) Repository(string) string { return "" }

// Lasting is false: the servers end with conch.
func (d *Driver) Lasting() bool { return false }

// Hash implements driver.Driver: of the Pod, template and image included.
func (d *Driver) Hash(p *policy.Partition, g *policy.GPU) string { return d.b.digest(p, g) }

// Refused says why this cluster cannot have a partition.
func (d *Driver) Refused(p *policy.Partition, g *policy.GPU) error { return d.b.refused(p, g) }

// Whole reports that a GPU is the device plugin's, which gives a Pod any that is free.
func (d *Driver) Whole(g *policy.GPU) bool { return !byClaim(g) }

// Claim is how a GPU is claimed for its servers.
func (d *Driver) Claim(g *policy.GPU) string { return claimedFor(g, d.b.byMPS(g)) }

// Nodes are those with GPUs, as they are now. They are not to be changed.
func (d *Driver) Nodes() []*policy.Node {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes
}

// Close stops watching the cluster.
func (d *Driver) Close() error {
	d.stop()
	d.keeping.Wait()
	d.cache.close()
	return nil
}

// Find implements driver.Driver. Of two Pods with the same partition and digest the later one is kept.
func (d *Driver) Find(ctx context.Context) ([]driver.Server, error) {
	pods := d.cache.ofRelease()
	slices.SortFunc(pods, func(a, b *core.Pod) int { return cmp.Compare(generation(b), generation(a)) })
	var all []driver.Server
	var errs []error
	kept, seen := map[string]bool{}, map[types.UID]bool{}
	for _, p := range pods {
		seen[p.UID] = true
	}
	d.mu.Lock()
	d.found = seen
	d.mu.Unlock()
	for _, p := range pods {
		spec, err := bundle(p)
		key := spec.Partition.GetId() + " " + spec.Hash
		if p.DeletionTimestamp != nil || over(p) {
			continue // it ends by itself, or is removed as a dead one is
		}
		if err == nil && !kept[key] && p.Status.PodIP != "" && runs(p) {
			var s *server
			if s, err = d.behind(p, spec); err == nil {
				kept[key] = true
				all = append(all, s)
				continue
			}
		}
		// It had not started, is there twice, or cannot be known.
		errs = append(errs, err, d.remove(ctx, p.Name, p.UID, 1))
	}
	return all, errors.Join(errs...)
}

// behind is the server of a Pod that has an address.
func (d *Driver) behind(p *core.Pod, spec driver.Spec) (*server, error) {
	s := &server{d: d, spec: spec, at: endpoint(p.Status.PodIP), name: p.Name, uid: p.UID, begin: began(p), done: make(chan struct{}), noted: p.Annotations[annotationModels]}
	remote, err := driver.NewRemote(s.at, d.b.Credentials, s)
	if err != nil {
		return nil, err
	}
	s.Remote = remote
	d.mu.Lock()
	d.servers[p.UID] = s
	d.mu.Unlock()
	// What came to pass before it was in the map.
	if now := d.cache.pod(p.Name); now == nil || now.UID != p.UID {
		d.gone(p)
	} else {
		d.seen(now)
	}
	return s, nil
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, spec driver.Spec) (driver.Server, error) {
	s, err := d.start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("partition %s: %w", spec.Partition.GetId(), err)
	}
	return s, nil
}

func (d *Driver) start(ctx context.Context, spec driver.Spec) (*server, error) {
	if err := d.b.refused(spec.Partition, spec.GPU); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.b.StartTimeout)
	defer cancel()
	if byClaim(spec.GPU) {
		done, err := d.keepClaim(ctx, d.b.claimName(spec.GPU.GetId()))
		if err != nil {
			return nil, err
		}
		defer done()
		if err := d.claim(ctx, spec.GPU); err != nil {
			return nil, fmt.Errorf("the claim of %s: %w", spec.GPU.GetId(), err)
		}
	}
	pod, err := d.create(ctx, spec)
	if err != nil {
		return nil, err
	}
	s, err := d.await(ctx, pod, spec)
	if err != nil {
		return nil, errors.Join(err, d.remove(context.WithoutCancel(ctx), pod.Name, pod.UID, 0))
	}
	if err := s.Ready(ctx); err != nil {
		if reason := s.Death(); reason != "" {
			err = errors.New(reason)
		}
		return nil, errors.Join(err, s.Kill(context.WithoutCancel(ctx)))
	}
	if err := d.answers(ctx, pod.Name); err != nil {
		d.b.Logger.Warn("a Pod's readiness gate could not be set, so that the cluster does not see yet that its server answers; it is tried again", "pod", pod.Name, "error", err)
	}
	return s, nil
}

// create makes the Pod of the partition's next generation.
func (d *Driver) create(ctx context.Context, spec driver.Spec) (*core.Pod, error) {
	label := dnsName(spec.Partition.GetId(), 63)
	for {
		var pod *core.Pod
		err := d.change(ctx, func(ctx context.Context) (err error) {
			pod, err = d.createNext(ctx, spec, label)
			return err
		})
		if apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			continue // one that the cache does not have yet
		}
		return pod, err
	}
}

// createNext asks for the Pod of the next generation once.
func (d *Driver) createNext(ctx context.Context, spec driver.Spec, label string) (*core.Pod, error) {
	d.mu.Lock()
	last := d.generations[label]
	for _, p := range d.cache.ofPartition(label) {
		last = max(last, generation(p))
	}
	d.generations[label] = last + 1
	d.mu.Unlock()
	want, err := d.b.pod(spec, last+1)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.made[want.Name] = time.Now()
	d.mu.Unlock()
	pod, err := d.b.Client.CoreV1().Pods(d.b.Namespace).Create(ctx, want, meta.CreateOptions{FieldManager: fieldManager})
	if err != nil && !refusal(err) {
		d.mu.Lock()
		d.doubtful[want.Name] = time.Now()
		d.mu.Unlock()
	}
	return pod, err
}

// refusal reports that the API server has answered that it made nothing: with a status of a client's mistake. Where it answers nothing, or that it failed or took too
// long, it may have. So it may where there is a Pod of that name, of which nobody knows: client-go asks again where the first answer was such a one.
func refusal(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code/100 == 4 && !apierrors.IsAlreadyExists(err)
}

// writesAtOnce bounds the changes that are under way: a change asks the fence when its turn comes, and is sent within a moment after that.
const writesAtOnce = 16

// changePatience bounds one change: one that the API server does not answer keeps its turn from others no longer.
const changePatience = 30 * time.Second

// change makes a change of the cluster when its turn comes, if this conch may still make it then.
func (d *Driver) change(ctx context.Context, do func(context.Context) error) error {
	select {
	case d.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-d.writing }()
	if err := d.b.Fence(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, changePatience)
	defer cancel()
	return do(ctx)
}

// answers sets the readiness gate of a Pod.
func (d *Driver) answers(ctx context.Context, pod string) error {
	return d.describe(ctx, pod, map[string]any{"status": map[string]any{"conditions": []core.PodCondition{{
		Type: gateAnswers, Status: core.ConditionTrue, Reason: "Answered", Message: "the server has answered conch", LastTransitionTime: meta.Now(),
	}}}})
}

// describe changes what a Pod says of its server, by its status: the API server lets that change annotations, too, and nothing of what a Pod runs.
func (d *Driver) describe(ctx context.Context, pod string, what map[string]any) error {
	patch, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return d.change(ctx, func(ctx context.Context) error {
		_, err := d.b.Client.CoreV1().Pods(d.b.Namespace).Patch(ctx, pod, types.StrategicMergePatchType, patch, meta.PatchOptions{FieldManager: fieldManager}, "status")
		return err
	})
}

// remove deletes a Pod, and sees to it until it is gone: an API server that does not answer now does later.
func (d *Driver) remove(ctx context.Context, name string, uid types.UID, grace int64) error {
	d.mu.Lock()
	if grace == 0 {
		d.condemned[uid] = time.Now()
	}
	d.mu.Unlock()
	return d.delete(ctx, name, uid, grace)
}

// delete asks for the end of a Pod; one that is gone, or whose name another has, has ended.
func (d *Driver) delete(ctx context.Context, name string, uid types.UID, grace int64) error {
	return d.change(ctx, func(ctx context.Context) error {
		return goneIsDone(d.b.Client.CoreV1().Pods(d.b.Namespace).Delete(ctx, name, meta.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &meta.Preconditions{UID: &uid}}))
	})
}

// goneIsDone is how a deletion ended: what is gone, or is another by now, need not be deleted.
func goneIsDone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
