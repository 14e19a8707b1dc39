// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/internal/zoo/executions"
)

// emulator starts a server without sockets on a repository of emulated models, on virtual time.
func emulator(t *testing.T, o Options, models ...zoo.Model) *Server {
	t.Helper()
	o.Repository, o.Clock = t.TempDir(), clock.Timers()
	for _, m := range models {
		require.NoError(t, zoo.Write(o.Repository, m))
		o.Load = append(o.Load, m.Name)
	}
	s, err := New(o)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context(), Listeners{}))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func emulated5ms(name string) zoo.Model {
	return zoo.Model{Name: name, Profile: zoo.Profile{Model: name, Alpha: time.Millisecond, Beta: 4 * time.Millisecond}, MaxBatchSize: 8, Dims: []int64{2}}
}

// ask sends rows zero rows and returns the answer's bytes.
func ask(t *testing.T, s *Server, model string, rows int) []byte {
	t.Helper()
	m, refusal := s.repo.find(model, "")
	require.Nil(t, refusal)
	r := &request{ctx: t.Context(), inputs: []tensor{{name: "INPUT", dtype: datatypeByName("FP32"), shape: []int64{int64(rows), 2}, data: make([]byte, 8*rows)}}}
	resp, err := s.infer(m, model, "", r)
	require.NoError(t, err)
	require.Nil(t, resp.err)
	require.Len(t, resp.outputs, 1)
	require.Equal(t, []int64{int64(rows), 2}, resp.outputs[0].shape)
	return resp.outputs[0].data
}

// took is how long f takes on the bubble's clock.
func took(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// TestOverlap: an execution alone takes as long whatever overlaps; of two at once the second saves the part of beta that ran beside the first.
func TestOverlap(t *testing.T) {
	for overlap, second := range map[float64]time.Duration{0: 10 * time.Millisecond, .5: 8 * time.Millisecond, 1: 6 * time.Millisecond} {
		bubble.Test(t, func(t *testing.T) {
			a, b := emulated5ms("a"), emulated5ms("b")
			a.Overlap, b.Overlap = overlap, overlap
			s := emulator(t, Options{}, a, b)
			require.Equal(t, 5*time.Millisecond, took(func() { ask(t, s, "a", 1) }), "alone")
			require.Equal(t, second, took(func() {
				var wg sync.WaitGroup
				for _, m := range []string{"a", "b"} {
					wg.Go(func() { ask(t, s, m, 1) })
				}
				wg.Wait()
			}))
		})
	}
}

func TestEmulatedTime(t *testing.T) {
	for _, c := range []struct {
		name    string
		share   int
		knee    int
		stretch float64
		rows    int
		want    time.Duration
	}{
		{"whole GPU", 100, 0, 1, 1, 5 * time.Millisecond},
		{"batch", 100, 0, 1, 8, 12 * time.Millisecond},
		{"half the GPU", 50, 0, 1, 1, 10 * time.Millisecond},
		{"more than the knee does not help", 80, 40, 1, 1, 5 * time.Millisecond},
		{"below the knee", 20, 40, 1, 1, 10 * time.Millisecond},
		{"stretched", 100, 0, 3, 1, 15 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				m := emulated5ms("m")
				m.Knee = c.knee
				s := emulator(t, Options{Partition: Partition{Share: c.share}, Stretch: c.stretch}, m)
				require.Equal(t, c.want, took(func() {
					out := ask(t, s, "m", c.rows)
					require.Equal(t, affine(make([]byte, 8*c.rows), make([]byte, 8*c.rows)), out)
				}))
			})
		})
	}
}

func TestAffine(t *testing.T) {
	in := []byte{0, 0, 0, 0, 0, 0, 0x80, 0x3f} // 0, 1
	require.Equal(t, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x40, 0x40}, affine(make([]byte, 8), in))
}

func TestEverythingOnAPartitionTakesTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := emulator(t, Options{}, emulated5ms("a"), emulated5ms("b"), emulated5ms("c"))
		require.Equal(t, 45*time.Millisecond, took(func() {
			var all sync.WaitGroup
			for _, model := range []string{"a", "b", "c"} {
				for range 3 {
					all.Go(func() { ask(t, s, model, 1) })
				}
			}
			all.Wait()
		}))
	})
}

func TestPartitionsOfAGPUSlowEachOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		gpu := NewGPU("g")
		heavy := emulated5ms("heavy")
		heavy.Profile.Beta, heavy.L2, heavy.Bandwidth = 99*time.Millisecond, .9, .8
		a := emulator(t, Options{Partition: Partition{ID: "a", GPU: gpu}}, emulated5ms("light"))
		b := emulator(t, Options{Partition: Partition{ID: "b", GPU: gpu}}, heavy)
		other := emulator(t, Options{Partition: Partition{ID: "c"}}, emulated5ms("light"))
		require.Equal(t, 5*time.Millisecond, took(func() { ask(t, a, "light", 1) }), "alone")

		var all sync.WaitGroup
		all.Go(func() {
			require.Equal(t, 100*time.Millisecond, took(func() { ask(t, b, "heavy", 1) }), "the factor of an execution is fixed when it starts")
		})
		time.Sleep(10 * time.Millisecond)
		factor := 0.1129*.3 + 0.7160*.9 + 0.3549*.3 + 0.0882*.8 + 0.8954
		require.InDelta(t, 5*factor, float64(took(func() { ask(t, a, "light", 1) }))/1e6, .001, "beside heavy")
		require.Equal(t, 5*time.Millisecond, took(func() { ask(t, other, "light", 1) }), "another GPU")
		all.Wait()
	})
}

// TestExecutions holds the emulation to the table that the simulator and the python model are held to.
func TestExecutions(t *testing.T) {
	cases, err := executions.Cases()
	require.NoError(t, err)
	for _, c := range cases {
		bubble.Test(t, func(t *testing.T) {
			gpu := NewGPU("g")
			model := zoo.Model{Name: "m", Profile: zoo.Profile{Alpha: executions.Alpha, Beta: executions.Beta}, MaxBatchSize: 8, Dims: []int64{2}, Knee: c.Knee, L2: c.L2, Bandwidth: c.Bandwidth}
			s := emulator(t, Options{Partition: Partition{ID: "own", GPU: gpu, Share: c.Share}}, model)
			var all sync.WaitGroup
			for i, o := range c.Others {
				beside := zoo.Model{Name: "o", Profile: zoo.Profile{Beta: o.Takes * time.Duration(o.Share) / 100}, MaxBatchSize: 1, Dims: []int64{2}, L2: o.L2, Bandwidth: o.Bandwidth}
				other := emulator(t, Options{Partition: Partition{ID: string(rune('a' + i)), GPU: gpu, Share: o.Share}}, beside)
				all.Go(func() { ask(t, other, "o", 1) })
			}
			time.Sleep(executions.After)
			require.InDelta(t, c.Latency.Seconds(), took(func() { ask(t, s, "m", c.Rows) }).Seconds(), 1e-6, "%+v", c)
			all.Wait()
		})
	}
}

func TestJitterIsReproducible(t *testing.T) {
	times := func(seed uint64) []time.Duration {
		var out []time.Duration
		bubble.Test(t, func(t *testing.T) {
			m := emulated5ms("m")
			m.Jitter = .1
			s := emulator(t, Options{Rand: rand.NewPCG(seed, 0)}, m)
			for range 20 {
				out = append(out, took(func() { ask(t, s, "m", 1) }))
			}
		})
		return out
	}
	a := times(1)
	require.Equal(t, a, times(1))
	require.NotEqual(t, a, times(2))
	sum := time.Duration(0)
	for _, d := range a {
		sum += d
	}
	require.InDelta(t, 5, float64(sum)/20/1e6, .5, "mean in ms")
}

// TestDynamicBatchingOnAnEmulatedGPU is the demo's baseline in small: a delay lets a batch grow, a busy partition lets it grow more.
func TestDynamicBatchingOnAnEmulatedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := emulated5ms("m")
		m.Dynamic = &zoo.DynamicBatching{MaxQueueDelay: 3 * time.Millisecond}
		s := emulator(t, Options{}, m)
		var all sync.WaitGroup
		var mu sync.Mutex
		var latency []time.Duration
		for range 3 { // at 0, 1 and 2 ms
			all.Go(func() {
				d := took(func() { ask(t, s, "m", 1) })
				mu.Lock()
				defer mu.Unlock()
				latency = append(latency, d)
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		// The oldest waits 3 ms, then three rows take 7 ms.
		require.ElementsMatch(t, []time.Duration{10 * time.Millisecond, 9 * time.Millisecond, 8 * time.Millisecond}, latency)
	})
}

func TestCloseCutsAnExecutionShort(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := emulated5ms("m")
		m.Profile.Beta = time.Hour
		s := emulator(t, Options{}, m)
		go func() {
			time.Sleep(time.Second)
			_ = s.Close()
		}()
		require.Less(t, took(func() { ask(t, s, "m", 1) }), 2*time.Second)
	})
}

func TestEmulationParameters(t *testing.T) {
	for name, c := range map[string]struct{ parameters, want string }{
		"no number":       {`parameters { key: "conch_emulate_beta_us" value { string_value: "fast" } }`, `parameter conch_emulate_beta_us: "fast" must be a number of at least 0`},
		"negative":        {`parameters { key: "conch_emulate_beta_us" value { string_value: "-1" } }`, `parameter conch_emulate_beta_us: "-1" must be a number of at least 0`},
		"not a number":    {`parameters { key: "conch_emulate_beta_us" value { string_value: "NaN" } }`, `parameter conch_emulate_beta_us: "NaN" must be a number of at least 0`},
		"zero knee":       {`parameters [ { key: "conch_emulate_beta_us" value { string_value: "1" } }, { key: "conch_emulate_knee" value { string_value: "0" } } ]`, `parameter conch_emulate_knee: "0" must be a number of at least 1`},
		"neither of both": {"", "unable to find backend library for backend 'python', try specifying runtime on the model configuration."},
	} {
		config, err := parseConfig("m", []byte(`name: "m" backend: "python" max_batch_size: 1 input [{ name: "I" data_type: TYPE_FP32 dims: [1] }] output [{ name: "O" data_type: TYPE_FP32 dims: [1] }] `+c.parameters))
		require.NoError(t, err, name)
		_, err = newExecutor(config, 1, nil)
		require.EqualError(t, err, c.want, name)
	}
}
