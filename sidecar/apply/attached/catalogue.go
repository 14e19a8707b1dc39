// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package attached

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// Servers are what the catalogue reads; a *driver.Attached is one.
type Servers interface {
	States(ctx context.Context) ([]driver.EndpointState, error)
	TakeOver(ctx context.Context, want func(model string) bool) []driver.Handover
	HandBack(ctx context.Context, dry bool) []driver.Handover
}

// ErrNobody means that no server has answered yet.
var ErrNobody = errors.New("no server has answered yet")

// Catalogue is what attached servers serve.
type Catalogue struct {
	servers Servers
	files   *Files
	node    string

	mu       sync.Mutex
	last     *repo.Revision
	count    int
	given    []*policy.Partition
	remarks  []string
	batching map[string]*tritonpb.ModelDynamicBatching
	writable bool
}

// New makes a catalogue of servers that stand on the GPUs of a node. Files may
// be nil where conch writes none of the servers' repositories.
func New(node string, servers Servers, files *Files) *Catalogue {
	return &Catalogue{servers: servers, node: node, files: files, writable: files != nil}
}

// Writable reports whether conch may place models of its own on the servers.
func (c *Catalogue) Writable() bool { return c.writable }

// Read asks what the servers serve now. A model is READY on a server or it is not
// in the revision. Where servers disagree on the tensors or the batching of a
// model, the first one that is up counts and the others are left out of it, with
// a remark. Where nothing has changed, the revision before is returned. The error
// wraps ErrNobody until a server has answered.
func (c *Catalogue) Read(ctx context.Context, by repo.Origin) (*repo.Revision, error) {
	states, err := c.servers.States(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(states, func(s driver.EndpointState) bool { return s.Seen }) {
		why := []error{errors.New("there is none")}
		if len(states) > 0 {
			why = nil
		}
		for _, s := range states {
			why = append(why, errors.New(s.Reason))
		}
		return nil, fmt.Errorf("%w: %w", ErrNobody, errors.Join(why...))
	}
	models, batching, remarks := merge(states)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remarks, c.batching = remarks, batching
	c.given = c.partitions(states, models)
	list := make([]*repo.Model, 0, len(models))
	for _, m := range models {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *repo.Model) int { return strings.Compare(a.Name, b.Name) })
	diff := changes(c.last, list)
	if c.last != nil && diff.Empty() {
		return c.last, nil
	}
	c.count++
	// The letter keeps these apart from the revisions of a store.
	next := &repo.Revision{ID: fmt.Sprintf("served%d", c.count), Origin: by, Models: list, Diff: diff}
	if c.last != nil {
		next.Parent = c.last.ID
		for _, m := range slices.Concat(c.last.Models, c.last.Unloaded) {
			if next.Model(m.Name) == nil {
				next.Unloaded = append(next.Unloaded, m)
			}
		}
	}
	c.last = next
	return next, nil
}

// Partitions are those of the last Read, one for every server that has answered
// once, on the GPU that stands for it.
func (c *Catalogue) Partitions() []*policy.Partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	clones := make([]*policy.Partition, len(c.given))
	for i, p := range c.given {
		clones[i] = proto.CloneOf(p)
	}
	return clones
}

// Remarks are what the operator should know of the last Read.
func (c *Catalogue) Remarks() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.remarks)
}

// Batching is a model's dynamic_batching as its first server's operator configured
// it, at the last Read; nil where there is none. It includes what conch took out of
// the server.
func (c *Catalogue) Batching(model string) *tritonpb.ModelDynamicBatching {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.batching[model]
}

// TakeOver makes the servers leave batching to conch, for the models of which
// conch forms batches.
func (c *Catalogue) TakeOver(ctx context.Context) []driver.Handover {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	if last == nil {
		return nil
	}
	return c.servers.TakeOver(ctx, func(model string) bool {
		m := last.Model(model)
		if m == nil {
			return false
		}
		ok, _ := repo.Batchable(m.Config)
		return ok
	})
}

// HandBack undoes TakeOver, and in the servers' repositories what conch staged.
// Delay is the max_queue_delay of a model that conch brought without dynamic
// batching of its own. With dry it says what it would do.
func (c *Catalogue) HandBack(ctx context.Context, dry bool, delay func(model string) time.Duration) ([]driver.Handover, error) {
	all := c.servers.HandBack(ctx, dry)
	if c.files == nil {
		return all, nil
	}
	states, err := c.servers.States(ctx)
	if err != nil {
		return all, err
	}
	for _, s := range states {
		all = append(all, c.files.release(ctx, s, dry, delay)...)
	}
	return all, nil
}

// merge makes one model of what several servers call by one name.
func merge(states []driver.EndpointState) (models map[string]*repo.Model, batching map[string]*tritonpb.ModelDynamicBatching, remarks []string) {
	models, batching = map[string]*repo.Model{}, map[string]*tritonpb.ModelDynamicBatching{}
	first := map[string]string{}
	for _, s := range states {
		remarks = append(remarks, amiss(s)...)
	}
	// A server that is down says nothing new: those that are up decide.
	for _, up := range []bool{true, false} {
		for _, s := range states {
			if s.Up != up || !s.Seen {
				continue
			}
			for _, served := range s.Models {
				known := models[served.Name]
				if known == nil {
					models[served.Name], first[served.Name] = model(served), s.GRPC
					batching[served.Name] = served.Batching()
					continue
				}
				if !proto.Equal(signature(known.Config), signature(served.Config)) {
					remarks = append(remarks, fmt.Sprintf("model %s at %s has other tensors or another batch dimension than at %s: requests for it go to %s alone",
						served.Name, s.GRPC, first[served.Name], first[served.Name]))
					continue
				}
				for _, v := range served.Versions {
					if !slices.Contains(known.Versions, v) {
						remarks = append(remarks, fmt.Sprintf("model %s at %s serves version %d, at %s not: requests may find either", served.Name, s.GRPC, v, first[served.Name]))
					}
				}
			}
		}
	}
	return models, batching, remarks
}

// amiss says what an operator should know of a server as such: probably an address
// in conch.yaml is wrong.
func amiss(s driver.EndpointState) (remarks []string) {
	if !s.Seen {
		return []string{fmt.Sprintf("no requests go to %s until it answers: %s", s.GRPC, s.Reason)}
	}
	for _, door := range s.Shut {
		address, what := s.HTTP, "HTTP requests that conch passes on as they are fail there"
		if door == "metrics" {
			address, what = s.Metrics, "its nv_* metrics are not in conch's"
		}
		remarks = append(remarks, fmt.Sprintf("nothing answers at %s, the %s of the server at %s: %s. Name the address, or off, in driver.endpoints or --attach", address, door, s.GRPC, what))
	}
	return remarks
}

func model(s driver.Served) *repo.Model {
	config := proto.CloneOf(s.Config)
	if batched, _ := repo.Batchable(config); batched {
		// Conch's batches are what they are with dynamic_batching and without.
		config.SchedulingChoice = nil
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(signature(config))
	if err != nil {
		wire = []byte(config.String())
	}
	sum := sha256.Sum256(fmt.Appendf(wire, "%v", s.Versions))
	return &repo.Model{Name: s.Name, Digest: "served-" + hex.EncodeToString(sum[:16]), Versions: s.Versions, Config: config}
}

// signature is what of a configuration a caller can see, less the size of
// batches, which may differ from server to server.
func signature(c *tritonpb.ModelConfig) *tritonpb.ModelConfig {
	s := &tritonpb.ModelConfig{
		Name: c.GetName(), Input: c.GetInput(), Output: c.GetOutput(), BatchInput: c.GetBatchInput(), BatchOutput: c.GetBatchOutput(),
		MaxBatchSize: min(1, c.GetMaxBatchSize()), ModelTransactionPolicy: c.GetModelTransactionPolicy(),
	}
	if c.GetDynamicBatching() == nil {
		s.SchedulingChoice = c.GetSchedulingChoice()
	}
	return s
}

// partitions places every model on the servers that have it.
func (c *Catalogue) partitions(states []driver.EndpointState, models map[string]*repo.Model) []*policy.Partition {
	var all []*policy.Partition
	for i, s := range states {
		if !s.Seen {
			continue
		}
		p := &policy.Partition{Id: s.GPU, Node: c.node, Gpus: []string{s.GPU}, ThreadPercentage: 100, Rank: uint32(i)}
		for _, served := range s.Models {
			m := models[served.Name]
			if m == nil || !proto.Equal(signature(m.Config), signature(served.Config)) {
				continue
			}
			p.Instances = append(p.Instances, policy.ModelInstance(served.Name, uint32(max(0, min(m.Config.GetMaxBatchSize(), served.Config.GetMaxBatchSize())))))
		}
		all = append(all, p)
	}
	return all
}

// changes compares with the revision before.
func changes(before *repo.Revision, after []*repo.Model) repo.Diff {
	var d repo.Diff
	old := map[string]*repo.Model{}
	if before != nil {
		for _, m := range before.Models {
			old[m.Name] = m
		}
	}
	for _, m := range after {
		was, had := old[m.Name]
		delete(old, m.Name)
		switch {
		case !had:
			d.Added = append(d.Added, m.Name)
		case was.Digest != m.Digest || !proto.Equal(was.Config, m.Config):
			d.Changed = append(d.Changed, repo.ModelChange{Model: m.Name})
		}
	}
	for name := range old {
		d.Removed = append(d.Removed, name)
	}
	slices.Sort(d.Removed)
	return d
}
