// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Between parent and child go length-delimited messages: to the child a policy.Snapshot, a trace in a wrapperspb.BytesValue (empty where the
// snapshot's traffic is to be generated: the child draws it), and then any number of policy.EvaluateRequest; from it a policy.Outcomes for each. The child ends when its input does.

// maxMessage bounds one message of either side.
const maxMessage = 512 << 20

// Serve is the child process: it reads a snapshot, traffic and requests from r, and writes outcomes to w, until r ends. The caller has lowered the priority of the
// process.
func Serve(ctx context.Context, r io.Reader, w io.Writer, checks ...plan.DispatchCheck) error {
	in, read := bufio.NewReader(r), protodelim.UnmarshalOptions{MaxSize: maxMessage}
	var snapshot policy.Snapshot
	if err := read.UnmarshalFrom(in, &snapshot); err != nil {
		return fmt.Errorf("evaluate: reading the snapshot: %w", err)
	}
	var trace wrapperspb.BytesValue
	if err := read.UnmarshalFrom(in, &trace); err != nil {
		return fmt.Errorf("evaluate: reading the traffic: %w", err)
	}
	length := time.Duration(snapshot.GetTraffic().GetSeconds() * float64(time.Second))
	var traffic *Traffic
	var err error
	if len(trace.GetValue()) > 0 {
		if traffic, err = Read(bytes.NewReader(trace.GetValue())); err == nil {
			traffic.Length = max(traffic.Length, length)
		}
	} else {
		traffic, err = Generate(&snapshot, length)
	}
	if err != nil {
		return fmt.Errorf("evaluate: %w", err)
	}
	e := New(&snapshot, traffic, checks...)
	for {
		var question policy.EvaluateRequest
		if err := read.UnmarshalFrom(in, &question); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("evaluate: reading a question: %w", err)
		}
		outcomes, err := e.EvaluateDraw(ctx, question.GetDraw(), question.GetPlans()...)
		if err != nil {
			return err
		}
		if _, err := protodelim.MarshalTo(w, &policy.Outcomes{Outcomes: outcomes}); err != nil {
			return fmt.Errorf("evaluate: writing outcomes: %w", err)
		}
	}
}

// Child evaluates in a process of its own, one per snapshot revision, started with the first question about it. Its methods may be called by
// several goroutines; questions are answered one at a time.
type Child struct {
	// turn is held during a question.
	turn chan struct{}

	// Command makes the process that runs [Serve] on its standard input and output.
	command func(context.Context) *exec.Cmd
	// recorded traffic of a snapshot; nil generates.
	recorded func(*policy.Snapshot) (*Traffic, error)

	running *running // of the caller that has the turn
}

type running struct {
	of     *policy.Snapshot
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *limited
}

// NewChild makes an evaluator that starts nothing yet. Recorded gives the arrivals of a snapshot that were recorded; where it is nil, or
// gives none, the child draws them ([Generate]).
func NewChild(command func(context.Context) *exec.Cmd, recorded func(*policy.Snapshot) (*Traffic, error)) *Child {
	return &Child{turn: make(chan struct{}, 1), command: command, recorded: recorded}
}

// Evaluate says what would become of plans under the snapshot's traffic, as [Child.EvaluateDraw] does.
func (c *Child) Evaluate(ctx context.Context, s *policy.Snapshot, plans []*policy.Plan) ([]*policy.Outcome, error) {
	return c.EvaluateDraw(ctx, s, 0, plans)
}

// EvaluateDraw implements policyhost.Evaluator. A child that dies is an error once; the next question starts another.
func (c *Child) EvaluateDraw(ctx context.Context, s *policy.Snapshot, draw uint32, plans []*policy.Plan) ([]*policy.Outcome, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r, err := c.ensure(ctx, s)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, r.cancel)()
	var outcomes policy.Outcomes
	if _, err = protodelim.MarshalTo(r.in, &policy.EvaluateRequest{Plans: plans, Draw: draw}); err == nil {
		err = protodelim.UnmarshalOptions{MaxSize: maxMessage}.UnmarshalFrom(r.out, &outcomes)
	}
	if err == nil && len(outcomes.GetOutcomes()) != len(plans) {
		err = fmt.Errorf("%d outcomes for %d plans", len(outcomes.GetOutcomes()), len(plans))
	}
	if err != nil {
		c.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("evaluate: the evaluating process: %w %s", err, r.stderr.text())
	}
	return outcomes.GetOutcomes(), nil
}

// Close ends the child.
func (c *Child) Close() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.end()
	return nil
}

// ensure starts the child of a snapshot. The end of the caller's context ends the
// child: nothing else interrupts a read or a write.
func (c *Child) ensure(ctx context.Context, s *policy.Snapshot) (*running, error) {
	if c.running != nil && c.running.of == s {
		return c.running, nil
	}
	c.end()
	var trace bytes.Buffer
	if c.recorded != nil {
		traffic, err := c.recorded(s)
		if err != nil {
			return nil, err
		}
		if traffic != nil {
			if err := traffic.Write(&trace); err != nil {
				return nil, err
			}
		}
	}
	life, cancel := context.WithCancel(context.Background())
	r := &running{of: s, cmd: c.command(life), cancel: cancel, stderr: &limited{}}
	r.cmd.Stderr = r.stderr
	r.cmd.WaitDelay = time.Second
	var err error
	if r.in, err = r.cmd.StdinPipe(); err == nil {
		var out io.ReadCloser
		if out, err = r.cmd.StdoutPipe(); err == nil {
			r.out = bufio.NewReader(out)
			err = r.cmd.Start()
		}
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("evaluate: starting the evaluating process: %w", err)
	}
	c.running = r
	defer context.AfterFunc(ctx, r.cancel)()
	_, err = protodelim.MarshalTo(r.in, s)
	if err == nil {
		_, err = protodelim.MarshalTo(r.in, wrapperspb.Bytes(trace.Bytes()))
	}
	if err != nil {
		c.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("evaluate: the evaluating process: %w %s", err, r.stderr.text())
	}
	return r, nil
}

func (c *Child) end() {
	if c.running == nil {
		return
	}
	_ = c.running.in.Close()
	c.running.cancel()
	// The process was killed: that it did not end well is known.
	_ = c.running.cmd.Wait()
	c.running = nil
}

// limited keeps the first bytes of what a process says of its death.
type limited struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := 2000 - len(l.buf); room > 0 {
		l.buf = append(l.buf, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (l *limited) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.buf))
}
