// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// endpoint looks at one server: whether it answers, and what it serves.
type endpoint struct {
	at     AttachEndpoint
	client *triton.Client
	health Health
	log    *slog.Logger

	mu      sync.Mutex
	tried   bool // it was looked at once
	seen    bool // it has answered once
	life    *lifetime
	reason  string // why it is down
	models  []Served
	several Executions // by models
	shut    []string   // doors at which nothing answered, of this life
	knocked bool
	changed chan struct{} // closed and replaced whenever the above changes
	// learnt counts what conch itself has changed: a look that began before is stale.
	learnt int
	// unlisted are models that came with the files of a load: Triton serves them and
	// leaves them out of its index. They are kept until the server does not know them.
	unlisted map[string]bool
	// refusals are models whose takeover failed, in this life.
	refusals map[string]bool
	// turns are what conch has changed of models, in this life, and again is when it may change anew what others have undone; zero: nothing is.
	turns map[string]turn
	again time.Time
	// retired: it is none of the driver's servers any more. Users are the attachedServers that are not left yet.
	retired bool
	users   int
}

// lifetime is a server from one answer to the silence after it.
type lifetime struct {
	over   chan struct{}
	reason string // written before over is closed
}

// watch looks at the server until ctx ends, or until it is retired and nobody uses it, or it does not answer any more.
func (e *endpoint) watch(ctx context.Context, changed func(string)) {
	for !e.useless() {
		e.look(ctx, changed)
		if e.due(time.Now()) {
			changed(fmt.Sprintf("what others have changed back at %s may be changed again", e.at.GRPC))
		}
		if !sleep(ctx, e.health.Period) {
			return
		}
	}
	e.down("it is none of the servers any more")
}

// retire has watch end once the server is of no use.
func (e *endpoint) retire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.retired = true
}

func (e *endpoint) use(by int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.users += by
}

func (e *endpoint) useless() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.retired && (e.users == 0 || e.life == nil)
}

// look is one look.
func (e *endpoint) look(ctx context.Context, changed func(string)) {
	if err := e.live(ctx); err != nil {
		if ctx.Err() == nil {
			e.down(err.Error())
		}
		return
	}
	e.mu.Lock()
	learnt := e.learnt
	e.mu.Unlock()
	asking, cancel := context.WithTimeout(ctx, e.health.Deadline)
	models, err := e.served(asking)
	cancel()
	if err != nil {
		e.log.Debug("what the server serves could not be read", "error", err)
		e.mu.Lock()
		known := e.seen
		models = e.models
		if !known { // it answers, and not as Triton does, or not yet
			e.tried, e.reason = true, err.Error()
			e.tell()
		}
		e.mu.Unlock()
		if !known {
			return
		}
	}
	met := e.met()
	if e.up(models, learnt) {
		changed(fmt.Sprintf("what the server at %s serves has changed", e.at.GRPC))
	}
	if met && e.knock(ctx) {
		changed(fmt.Sprintf("something of the server at %s does not answer", e.at.GRPC))
	}
}

// met reports whether the server answered the look before, too.
func (e *endpoint) met() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life != nil
}

// knock tries the other doors of a server, once in its life, and reports whether one
// is shut: a wrong address would be found out by clients otherwise. It is for a
// second look, for a server that starts opens gRPC first.
func (e *endpoint) knock(ctx context.Context) bool {
	e.mu.Lock()
	knocked := e.knocked
	e.knocked = true
	e.mu.Unlock()
	if knocked {
		return false
	}
	var shut []string
	within, cancel := context.WithTimeout(ctx, e.health.Deadline)
	defer cancel()
	for _, door := range []struct{ name, address string }{{"HTTP", e.at.HTTP}, {"metrics", e.at.Metrics}} {
		if door.address == "" {
			continue
		}
		conn, err := (&net.Dialer{}).DialContext(within, "tcp", door.address)
		if err != nil {
			shut = append(shut, door.name)
			continue
		}
		_ = conn.Close() // nothing was sent
	}
	if ctx.Err() != nil {
		return false
	}
	e.mu.Lock()
	e.shut = shut
	e.mu.Unlock()
	return len(shut) > 0
}

// live asks for a sign of life. A refused connection says at once what a silent
// one says after the deadline; either is asked once more, for a connection may
// break, and conch itself may have been stopped meanwhile.
func (e *endpoint) live(ctx context.Context) error {
	err := e.ask(ctx, e.health.Deadline)
	if err == nil || !sleep(ctx, min(100*time.Millisecond, e.health.Period)) {
		return err
	}
	switch err := e.ask(ctx, e.health.again()); {
	case err == nil:
		return nil
	case status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("the server at %s hangs: it did not answer a health probe within %s", e.at.GRPC, e.health.Deadline)
	default:
		if e.strange() {
			if why := wrongPort(ctx, e.at.GRPC, e.health.again()); why != "" {
				return errors.New(why)
			}
		}
		return fmt.Errorf("the server at %s cannot be reached: %s", e.at.GRPC, status.Convert(err).Message())
	}
}

// strange reports that it has never answered.
func (e *endpoint) strange() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.seen
}

func (e *endpoint) ask(ctx context.Context, deadline time.Duration) error {
	within, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return answers(within, e.client.Stub)
}

// served reads what the server has READY, sorted by name.
func (e *endpoint) served(ctx context.Context) ([]Served, error) {
	index, err := e.client.Index(ctx, true)
	if err != nil {
		return nil, err
	}
	versions := map[string][]int64{}
	for _, m := range index {
		if m.GetState() != triton.StateReady {
			continue
		}
		// Triton's own versions are numbers; nothing else can be asked for.
		if v, err := strconv.ParseInt(m.GetVersion(), 10, 64); err == nil {
			versions[m.GetName()] = append(versions[m.GetName()], v)
		}
	}
	for _, name := range e.expected() {
		if _, listed := versions[name]; listed {
			e.expectNoMore(name)
			continue
		}
		metadata, err := e.client.Stub.ModelMetadata(ctx, &tritonpb.ModelMetadataRequest{Name: name})
		if triton.IsNotFound(err) {
			e.expectNoMore(name)
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, version := range metadata.GetVersions() {
			if v, err := strconv.ParseInt(version, 10, 64); err == nil {
				versions[name] = append(versions[name], v)
			}
		}
	}
	var all []Served
	for name, numbers := range versions {
		config, err := e.client.ModelConfig(ctx, name, "")
		if triton.IsNotFound(err) {
			continue // unloaded meanwhile
		}
		if err != nil {
			return nil, err
		}
		slices.Sort(numbers)
		all = append(all, Served{Name: name, Config: config, Versions: numbers})
	}
	slices.SortFunc(all, func(a, b Served) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// maxUnlisted bounds the names in unlisted, each of which costs every look a call.
const maxUnlisted = 100

// expect has looks ask for a model that the index may not have.
func (e *endpoint) expect(model string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unlisted == nil {
		e.unlisted = map[string]bool{}
	}
	if len(e.unlisted) >= maxUnlisted {
		e.log.Warn("a model that came with the files of a load is not followed: too many did", "model", model, "most", maxUnlisted)
		return
	}
	e.unlisted[model] = true
}

// expectNoMore ends expect.
func (e *endpoint) expectNoMore(model string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.unlisted, model)
}

func (e *endpoint) expected() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.unlisted))
}

// up notes that the server answers, and reports whether it serves something else
// than before.
func (e *endpoint) up(models []Served, learnt int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if learnt != e.learnt {
		models = e.models // the next look sees what is so now
	}
	other := !e.seen || !sameServed(e.models, models)
	e.tried, e.seen, e.models, e.reason = true, true, models, ""
	if other {
		e.several = executionsOf(e.at.Executions, models)
	}
	if e.life == nil {
		e.life = &lifetime{over: make(chan struct{})}
		e.shut, e.knocked = nil, false
		e.refusals, e.turns, e.again = map[string]bool{}, map[string]turn{}, time.Time{}
	}
	e.tell()
	return other
}

func (e *endpoint) down(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tried, e.reason = true, reason
	if e.life != nil {
		e.log.Warn("a server went away", "reason", reason)
		e.life.reason = reason
		close(e.life.over)
		e.life = nil
	}
	e.tell()
}

// tell wakes the waiting calls. Guarded by mu.
func (e *endpoint) tell() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// awaitUp waits until the server answers.
func (e *endpoint) awaitUp(ctx context.Context) (*lifetime, error) {
	var life *lifetime
	err := e.await(ctx, func() bool { life = e.life; return life != nil })
	return life, err
}

// await waits until a condition on what mu guards holds.
func (e *endpoint) await(ctx context.Context, holds func() bool) error {
	for {
		e.mu.Lock()
		done, changed := holds(), e.changed
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("server at %s: %w", e.at.GRPC, context.Cause(ctx))
		case <-changed:
		}
	}
}

// executes is how the server executes batches at once.
func (e *endpoint) executes() Executions {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.several
}

func (e *endpoint) state() EndpointState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return EndpointState{AttachEndpoint: e.at, Seen: e.seen, Up: e.life != nil, Reason: e.reason, Shut: slices.Clone(e.shut), Models: slices.Clone(e.models), AtOnce: max(1, e.several.AtOnce)}
}
