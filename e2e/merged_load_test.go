// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// fineTuneInputs is how many different requests callers make of a fine-tune, fineTuneBound by how much an answer may differ from the first.
const (
	fineTuneInputs = 6
	fineTuneBound  = 1e-5
)

// fineTuneLoad asks fine-tunes over and over, and holds every answer to the one that the model gave before anything was done to it.
type fineTuneLoad struct {
	t        *testing.T
	own      map[string][fineTuneInputs][]float32
	answered atomic.Int64
	faults   chan error
	finish   func()
}

// askFineTunes notes what the models answer, and starts callers.
func askFineTunes(t *testing.T, server tritonpb.GRPCInferenceServiceClient, names []string, callers int) *fineTuneLoad {
	t.Helper()
	l := &fineTuneLoad{t: t, own: map[string][fineTuneInputs][]float32{}, faults: make(chan error, callers)}
	ask := func(name string, seed int) ([]float32, error) {
		r, err := server.ModelInfer(context.WithoutCancel(t.Context()), tokens(name, seed, 1+seed%2))
		if err != nil {
			return nil, err
		}
		return scores(r, name)
	}
	for _, name := range names {
		var own [fineTuneInputs][]float32
		for seed := range own {
			var err error
			own[seed], err = ask(name, seed)
			require.NoError(t, err)
		}
		l.own[name] = own
	}
	var stop atomic.Bool
	var clients sync.WaitGroup
	for i := range callers {
		clients.Go(func() {
			for n := i; !stop.Load(); n++ {
				name, seed := names[n%len(names)], n%fineTuneInputs
				got, err := ask(name, seed)
				if err == nil && !(differs(l.own[name][seed], got) <= fineTuneBound) {
					err = fmt.Errorf("%s: %v instead of %v", name, got, l.own[name][seed])
				}
				if err != nil {
					l.faults <- err
					return
				}
				l.answered.Add(1)
			}
		})
	}
	l.finish = sync.OnceFunc(func() { stop.Store(true); clients.Wait() })
	t.Cleanup(l.finish)
	return l
}

// flows requires that requests are answered from now on, and that all were.
func (l *fineTuneLoad) flows() {
	l.t.Helper()
	before := l.answered.Load()
	require.Eventually(l.t, func() bool { return l.answered.Load() > before+30 || len(l.faults) > 0 }, time.Minute, 10*time.Millisecond)
	l.requireNoFault()
}

// close ends the callers and requires that every request was answered.
func (l *fineTuneLoad) close() {
	l.t.Helper()
	l.finish()
	l.requireNoFault()
	l.t.Logf("%d requests were answered", l.answered.Load())
}

func (l *fineTuneLoad) requireNoFault() {
	l.t.Helper()
	select {
	case err := <-l.faults:
		require.NoError(l.t, err)
	default:
	}
}

// servedNow are the models that partitions say that they serve.
func servedNow(t *testing.T, a *client.Client) (all []string) {
	t.Helper()
	for _, p := range partitions(t, a) {
		all = append(all, p.Serving...)
	}
	return all
}
