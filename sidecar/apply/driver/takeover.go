// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// A server whose models come from its own repository batches by itself where
// their configuration says dynamic_batching, and would hold back the batches that
// conch forms where that has a delay. In explicit control mode its models can be loaded again with
// another configuration in place of the file's (Triton's model repository
// extension, parameter "config"). It has to be complete, so it is what the server
// itself reported, with that field empty: what does not come through conch's queue, such as
// steps of ensembles that are left to the server, and calls of others, is batched
// there as before, without the delay. Triton changes over without losing a request
// and keeps the override until the model is unloaded or its files change. The dynamic_batching that
// it reported before is a parameter of the override, so that any conch can give it back, such as one whose Pod has replaced
// another's, and that it is known as long as the override is in force.

// originalParameter of an override is the dynamic_batching that it replaces, as JSON.
const originalParameter = "conch_original_dynamic_batching"

// original is a configuration as it was before takeOver; nil where it is not one that takeOver made, or others have given it batching since.
func original(c *tritonpb.ModelConfig) *tritonpb.ModelConfig {
	kept, marked := c.GetParameters()[originalParameter]
	batching := &tritonpb.ModelDynamicBatching{}
	if now := c.GetDynamicBatching(); !marked || now != nil && !triton.BatchesAtOnce(now) || (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(kept.GetStringValue()), batching) != nil {
		return nil
	}
	before := unmarked(c)
	before.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: batching}
	return before
}

// unmarked is a configuration without originalParameter.
func unmarked(c *tritonpb.ModelConfig) *tritonpb.ModelConfig {
	if _, marked := c.GetParameters()[originalParameter]; !marked {
		return c
	}
	without := proto.CloneOf(c)
	if delete(without.Parameters, originalParameter); len(without.Parameters) == 0 {
		without.Parameters = nil
	}
	return without
}

// Handover is one model whose configuration was changed on its server, or would
// be.
type Handover struct {
	GPU, Endpoint, Model string
	// Change is what was done, in words.
	Change string
	// Err says why it was not.
	Err error
}

// ErrNoControl means that the server takes no loads, because it does not run with
// --model-control-mode=explicit.
var ErrNoControl = errors.New("the server does not take loads; start it with --model-control-mode=explicit to let conch form the batches alone")

// TakeOver takes the delay out of the dynamic_batching of the models, on every server
// that is up, for which want is true. What it has done before it does not do again.
func (d *Attached) TakeOver(ctx context.Context, want func(model string) bool) []Handover {
	var all []Handover
	for _, e := range d.all() {
		state := e.state()
		if !state.Up {
			continue
		}
		for _, m := range state.Models {
			if now := m.Config.GetDynamicBatching(); now == nil || triton.BatchesAtOnce(now) || !want(m.Name) {
				continue
			}
			if e.refused(m.Name) {
				continue
			}
			h := Handover{GPU: e.at.GPU, Endpoint: e.at.GRPC, Model: m.Name, Change: "the delay of dynamic_batching taken out"}
			if h.Err = e.inTurn(m.Name, true, func() error { return d.takeOver(ctx, e, m) }); h.Err != nil {
				h.Change = ""
				if !errors.Is(h.Err, errUndone) {
					e.refuse(m.Name, h.Err)
				}
			}
			all = append(all, h)
		}
	}
	return all
}

func (d *Attached) takeOver(ctx context.Context, e *endpoint, m Served) error {
	if !known(m.Config) {
		return fmt.Errorf("model %q: its configuration has fields of a newer Triton, which an override would lose; its dynamic_batching stays as it is", m.Name)
	}
	without := proto.CloneOf(m.Config)
	without.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{}}
	before, err := protojson.Marshal(m.Config.GetDynamicBatching())
	if err != nil {
		return fmt.Errorf("model %q: %w", m.Name, err)
	}
	if without.Parameters == nil {
		without.Parameters = map[string]*tritonpb.ModelParameter{}
	}
	without.Parameters[originalParameter] = &tritonpb.ModelParameter{StringValue: string(before)}
	return d.override(ctx, e, m.Name, without)
}

// override loads a model with a configuration, and looks whether it is in force.
func (d *Attached) override(ctx context.Context, e *endpoint, model string, config *tritonpb.ModelConfig) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(config)
	if err != nil {
		return fmt.Errorf("model %q: %w", model, err)
	}
	within, cancel := context.WithTimeout(ctx, d.o.LoadTimeout)
	defer cancel()
	if err := e.client.LoadConfig(within, model, string(text)); err != nil {
		if status.Code(err) == codes.Unavailable && within.Err() == nil {
			return fmt.Errorf("%w: %w", ErrNoControl, err)
		}
		return err
	}
	now, err := e.client.ModelConfig(within, model, "")
	if err != nil {
		return err
	}
	if now.GetDynamicBatching().GetMaxQueueDelayMicroseconds() != config.GetDynamicBatching().GetMaxQueueDelayMicroseconds() {
		return fmt.Errorf("model %q: the server took the configuration and does not show it", model)
	}
	e.learn(model, now)
	return nil
}

// HandBack gives every model the configuration that its server reported before
// TakeOver. With dry it only says what it would do. A model that others have
// loaded anew meanwhile, or unloaded, has its own configuration again.
func (d *Attached) HandBack(ctx context.Context, dry bool) []Handover {
	var all []Handover
	for _, e := range d.all() {
		state := e.state()
		for _, m := range state.Models {
			before := original(m.Config)
			if before == nil {
				continue
			}
			h := Handover{GPU: e.at.GPU, Endpoint: e.at.GRPC, Model: m.Name, Change: "dynamic_batching given back as it was"}
			switch {
			case !state.Up:
				h.Err = fmt.Errorf("%w: %s; order it again once the server is back", ErrDown, state.Reason)
			case !dry:
				h.Err = e.inTurn(m.Name, false, func() error { return d.override(ctx, e, m.Name, before) })
			}
			if h.Err != nil {
				h.Change = ""
			}
			all = append(all, h)
		}
	}
	return all
}

// errUndone is why a model is not changed again at once.
var errUndone = errors.New("what conch had changed was changed back, as by another Conch before the same server in another mode; it is changed again after a while")

// Where others change back what conch has changed it is changed again after undonePause, and after up to undoneLongest while that goes on: each change is a load, and two
// conchs that want different things would have a server load its models for ever.
const (
	undonePause   = time.Minute
	undoneLongest = time.Hour
)

// turn is what conch has changed last of a model: whether it took it over, or gave it back, when, and after how long it does so again.
type turn struct {
	took  bool
	at    time.Time
	pause time.Duration
}

// inTurn has a model taken over, or given back, unless others have undone that a moment ago.
func (e *endpoint) inTurn(model string, take bool, do func() error) error {
	if err := e.mayChange(model, take, time.Now()); err != nil {
		return err
	}
	err := do()
	if err == nil {
		e.hasChanged(model, take, time.Now())
	}
	return err
}

// mayChange reports whether a model is to be taken over, or given back, now. Where conch did the same last, others have undone it.
func (e *endpoint) mayChange(model string, take bool, now time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, did := e.turns[model]
	next := last.at.Add(last.pause)
	if !did || last.took != take || !now.Before(next) {
		return nil
	}
	if e.again.IsZero() || next.Before(e.again) {
		e.again = next
	}
	return errUndone
}

// hasChanged notes that a model was taken over, or given back.
func (e *endpoint) hasChanged(model string, take bool, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := turn{take, now, undonePause}
	if last, did := e.turns[model]; did && last.took == take && now.Sub(last.at) < 2*last.pause {
		next.pause = min(2*last.pause, undoneLongest)
	}
	e.turns[model] = next
}

// due reports, once, that what others have undone may be changed again.
func (e *endpoint) due(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.again.IsZero() || now.Before(e.again) {
		return false
	}
	e.again = time.Time{}
	return true
}

// known reports whether a message has no field that this build does not know.
func known(c *tritonpb.ModelConfig) bool {
	wire, err := proto.Marshal(c)
	if err != nil {
		return false
	}
	less := &tritonpb.ModelConfig{}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(wire, less) == nil && proto.Size(less) == len(wire)
}

// everyModel stands for all models of a server that takes no loads.
const everyModel = ""

// refused reports whether a takeover has failed already.
func (e *endpoint) refused(model string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refusals[everyModel] || e.refusals[model]
}

// refuse remembers a failed takeover until the server is another.
func (e *endpoint) refuse(model string, err error) {
	if errors.Is(err, ErrNoControl) {
		model = everyModel
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusals[model] = true
}

// learn notes a configuration that conch itself has changed, so that the next
// look finds nothing new.
func (e *endpoint) learn(model string, c *tritonpb.ModelConfig) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.learnt++
	e.models = slices.Clone(e.models)
	for i := range e.models {
		if e.models[i].Name == model {
			e.models[i].Config = c
		}
	}
	e.several = executionsOf(e.at.Executions, e.models)
}
