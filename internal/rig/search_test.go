// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"encoding/binary"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
)

// exhausted is a system that answers so many requests of a trial and fails the rest: what it holds depends on no clock.
type exhausted struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	holds, wrongFrom int64 // requests; wrongFrom 0 is never
	came             atomic.Int64
	loads            []int64 // requests of each load so far
	address          string
	server           *grpc.Server
	closed           bool
}

func (*exhausted) Affine() bool { return false }
func (*exhausted) Died() bool   { return false }

func (e *exhausted) System() string { return "Fake" }
func (e *exhausted) String() string { return "exhausted" }

func (e *exhausted) start(context.Context, *Contest) (running, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.address, e.server = l.Addr().String(), grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(e.server, e)
	go func() { _ = e.server.Serve(l) }()
	return e, nil
}

func (e *exhausted) Endpoints() []string                    { return []string{e.address} }
func (e *exhausted) Serving() [][]int                       { return nil }
func (e *exhausted) BusyShare(Usage, time.Duration) float64 { return 0 }
func (e *exhausted) Usage(context.Context) (Usage, error) { // read before each trial
	if n := e.came.Swap(0); n > 0 {
		e.loads = append(e.loads, n)
	}
	return Usage{}, nil
}

func (e *exhausted) Close() error {
	e.server.Stop()
	e.closed = true
	return nil
}

func (e *exhausted) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	n := e.came.Add(1)
	if n > e.holds {
		return nil, status.Error(codes.Unavailable, "exhausted")
	}
	out := make([]byte, 0, 64)
	for in := r.RawInputContents[0]; len(in) > 0; in = in[4:] {
		y := 2*math.Float32frombits(binary.LittleEndian.Uint32(in)) + 1
		if e.wrongFrom > 0 && n >= e.wrongFrom {
			y++
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(y))
	}
	return &tritonpb.ModelInferResponse{ModelName: r.ModelName, RawOutputContents: [][]byte{out}}, nil
}

// fakeContest is between such systems.
func fakeContest(progress *[]string) *Contest {
	return &Contest{
		Models:  Copies(zoo.Profile{Model: "m", GPUType: zoo.A100, SLO: time.Minute}, 1, 1, 4),
		Measure: time.Second / 5, Seed: 3, Progress: func(line string) { *progress = append(*progress, line) },
	}
}

// sent is how many requests a trial of the contest has at a rate.
func sent(t *testing.T, c *Contest, rate float64) int {
	t.Helper()
	s := &exhausted{holds: math.MaxInt64}
	r, err := s.start(t.Context(), c)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	trial, err := c.trial(t.Context(), "count", s, c.load(rate))
	require.NoError(t, err)
	require.Zero(t, trial.Bad())
	return trial.Models[0].Sent
}

// The search finds what the best of the setups holds, and asks no more of one that is worse than whether it is better.
func TestHighestFindsTheBestSetup(t *testing.T) {
	var progress []string
	c := fakeContest(&progress)
	weak, strong, weaker := &exhausted{holds: 40}, &exhausted{holds: 90}, &exhausted{holds: 20}
	best, err := c.Highest(t.Context(), []Setup{weak, strong, weaker}, 100)
	require.NoError(t, err)
	require.Same(t, strong, best.Setup)
	require.LessOrEqual(t, sent(t, c, best.Rate), 90)
	require.Greater(t, sent(t, c, 1.05*best.Rate), 90, "a rate 5%% higher is too much")
	require.InDelta(t, best.Rate, best.Held(), .01*best.Rate)
	require.True(t, weak.closed && strong.closed && weaker.closed)
	trials := strings.Count(strings.Join(progress, "\n"), "Fake, exhausted at ")
	require.Less(t, trials, 30)

	at, err := c.At(t.Context(), []Setup{weaker, strong, weak}, 300)
	require.NoError(t, err)
	require.Same(t, strong, at.Setup, "the best goodput at a rate")
}

// What a setup is offered to learn from comes before its trials, is less than the first of them, and does not count: the fake answers all of it
// and would fail a trial of as many requests.
func TestASetupLearnsBeforeItIsTried(t *testing.T) {
	var progress []string
	c := fakeContest(&progress)
	plain := &exhausted{holds: 90}
	before, err := c.Highest(t.Context(), []Setup{plain}, 100)
	require.NoError(t, err)
	require.Len(t, plain.loads, strings.Count(strings.Join(progress, "\n"), " at "))

	progress, c.Learn = nil, 4*c.Measure
	learning := &exhausted{holds: 90}
	after, err := c.Highest(t.Context(), []Setup{learning}, 100)
	require.NoError(t, err)
	require.InDelta(t, before.Rate, after.Rate, 1e-9)
	trials := strings.Count(strings.Join(progress, "\n"), " at ")
	require.Len(t, learning.loads, trials+1)
	require.InDelta(t, 4*learnAt, float64(learning.loads[0])/float64(plain.loads[0]), 1.2)
}

// flaky is exhausted at once in every trial that is the first at its rate.
type flaky struct {
	*exhausted
	read int
}

func (f *flaky) start(ctx context.Context, c *Contest) (running, error) {
	if _, err := f.exhausted.start(ctx, c); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *flaky) Usage(ctx context.Context) (Usage, error) { // read before each trial and after it
	u, err := f.exhausted.Usage(ctx)
	if trial := f.read / 2; f.read%2 == 0 && trial%2 == 0 {
		f.came.Store(1_000_000)
	} else if f.read%2 == 0 {
		f.came.Store(0)
	}
	f.read++
	return u, err
}

// A rate that fails once and holds then counts as held, with Twice.
func TestARateIsTriedTwice(t *testing.T) {
	var progress []string
	c := fakeContest(&progress)
	plain, err := c.Highest(t.Context(), []Setup{&exhausted{holds: 90}}, 100)
	require.NoError(t, err)
	once, err := c.Highest(t.Context(), []Setup{&flaky{exhausted: &exhausted{holds: 90}}}, 100)
	require.NoError(t, err)
	require.Less(t, once.Rate, plain.Rate/2, "the first rate failed by chance, and the search went down")
	c.Twice = true
	twice, err := c.Highest(t.Context(), []Setup{&flaky{exhausted: &exhausted{holds: 90}}}, 100)
	require.NoError(t, err)
	require.InEpsilon(t, plain.Rate, twice.Rate, .15, "the second trial has other arrivals")
}

// settling is a system that is asked to settle.
type settling struct {
	*exhausted
	settled []int64 // requests that had come each time
}

func (s *settling) start(ctx context.Context, c *Contest) (running, error) {
	if _, err := s.exhausted.start(ctx, c); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *settling) Settle(context.Context) error {
	s.settled = append(s.settled, s.came.Load())
	return nil
}

// What starts servers behind its doors is asked nothing before it has them, and learns from what the contest sends.
func TestASetupSettlesBeforeItLearns(t *testing.T) {
	var progress []string
	c := fakeContest(&progress)
	c.Learn = c.Measure
	var lengths []time.Duration
	c.Arrivals = func(rate float64, _ uint64, length time.Duration) (all []loadgen.Arrival, err error) {
		lengths = append(lengths, length)
		for at := time.Duration(0); at < length; at += time.Duration(float64(time.Second) / rate) {
			all = append(all, loadgen.Arrival{At: at})
		}
		return all, nil
	}
	s := &settling{exhausted: &exhausted{holds: 40}}
	_, err := c.Highest(t.Context(), []Setup{s}, 100)
	require.NoError(t, err)
	require.Equal(t, []int64{0}, s.settled)
	require.Len(t, lengths, 1+strings.Count(strings.Join(progress, "\n"), " at "), "the load that is learnt from, and each trial's")
}

func TestAContestSaysWhatItCannotJudge(t *testing.T) {
	var progress []string
	c := fakeContest(&progress)
	_, err := c.Highest(t.Context(), []Setup{&exhausted{}}, 1000)
	require.ErrorContains(t, err, "Fake, exhausted does not hold even 10 req/s")
	require.ErrorIs(t, err, ErrHoldsNothing)
	liar := &exhausted{holds: 1000, wrongFrom: 5}
	_, err = c.At(t.Context(), []Setup{liar}, 300)
	require.ErrorIs(t, err, loadgen.ErrWrong, "a fast wrong answer wins no contest")
	require.True(t, liar.closed)
}
