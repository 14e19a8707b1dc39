// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/clock"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// emulation holds a model's conch_emulate_* parameters. They mean the same in the python model that emulates behind a real server.
type emulation struct {
	alpha, beta time.Duration // l(b) = beta + alpha*b at the whole GPU
	knee        float64       // thread percentage beyond which more does not help
	jitter      float64       // standard deviation of a multiplicative normal
	overlap     float64       // the part of beta that runs beside other executions of the partition, before its turn; 0 is none
	load        policy.Load   // at the whole GPU
}

// parseEmulation reads the parameters; without conch_emulate_beta_us the model is not emulated and ok is false.
func parseEmulation(c *pb.ModelConfig) (e emulation, ok bool, err error) {
	if _, ok = c.GetParameters()["conch_emulate_beta_us"]; !ok {
		return e, false, nil
	}
	number := func(name string, otherwise, least float64) float64 {
		p, given := c.GetParameters()["conch_emulate_"+name]
		if !given {
			return otherwise
		}
		f, perr := strconv.ParseFloat(strings.TrimSpace(p.GetStringValue()), 64)
		if err == nil && (perr != nil || !(f >= least) || math.IsInf(f, 0)) {
			err = invalid("parameter conch_emulate_%s: %q must be a number of at least %g", name, p.GetStringValue(), least)
		}
		return f
	}
	micros := func(name string) time.Duration { return time.Duration(number(name, 0, 0) * float64(time.Microsecond)) }
	e.alpha, e.beta = micros("alpha_us"), micros("beta_us")
	e.knee = number("knee", 100, 1)
	e.jitter = number("jitter", 0, 0)
	if e.overlap = number("overlap", 0, 0); err == nil && e.overlap > 1 {
		err = invalid("parameter conch_emulate_overlap: %g is more than all of beta, which is 1", e.overlap)
	}
	e.load = policy.Load{L2: number("l2", .3, 0), Bandwidth: number("bandwidth", .3, 0)}
	return e, true, err
}

// latency is how long rows rows take at a share of the GPU, without co-runners.
func (e emulation) latency(rows int, share float64) time.Duration {
	whole := float64(e.beta) + float64(e.alpha)*float64(rows)
	return time.Duration(whole * e.knee / min(share, e.knee))
}

// place is where a server's models run.
type place struct {
	gpu       *GPU
	partition *partitionState
	share     float64
	stretch   float64
	clock     clock.Clock
	closing   <-chan struct{}

	mu  sync.Mutex
	rng *rand.Rand // guarded by mu
}

func (p *place) normal() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.NormFloat64()
}

// until sleeps to a time, in steps short enough that a closing server does not wait for a long emulation.
func (p *place) until(t time.Time) {
	const step = 50 * time.Millisecond
	for {
		left := t.Sub(p.clock.Now())
		if left <= 0 {
			return
		}
		select {
		case <-p.closing:
			return
		default:
			p.clock.Sleep(min(left, step))
		}
	}
}

// emulated is a model that takes the time a GPU would: OUTPUT = 2*INPUT + 1 elementwise, after l(b).
type emulated struct {
	emulation
	place  *place
	output string
}

func newEmulated(c *pb.ModelConfig, e emulation, p *place) (*emulated, error) {
	fp32 := pb.DataType_TYPE_FP32
	if len(c.Input) != 1 || len(c.Output) != 1 || c.Input[0].DataType != fp32 || c.Output[0].DataType != fp32 {
		return nil, invalid("an emulated model has one TYPE_FP32 input and one TYPE_FP32 output, not %d and %d", len(c.Input), len(c.Output))
	}
	return &emulated{emulation: e, place: p, output: c.Output[0].Name}, nil
}

func (e *emulated) execute(p *payload, responses []response) error {
	jitter := 1.0
	if e.jitter > 0 {
		jitter = max(0, 1+e.jitter*e.place.normal())
	}
	overlapped := e.overlap * float64(emulation{beta: e.beta, knee: e.knee}.latency(0, e.place.share))
	if overlapped > 0 {
		e.place.until(e.place.clock.Now().Add(time.Duration(overlapped * jitter * e.place.stretch)))
	}
	slow := e.place.gpu.enter(e.place.partition, policy.Load{L2: e.load.L2 * e.place.share / 100, Bandwidth: e.load.Bandwidth * e.place.share / 100})
	defer e.place.gpu.leave(e.place.partition)
	start := e.place.clock.Now()
	factor := slow * e.place.stretch * jitter
	for i, r := range p.requests {
		responses[i] = e.answer(r)
	}
	e.place.until(start.Add(time.Duration((float64(e.latency(p.rows, e.place.share)) - overlapped) * factor)))
	return nil
}

// answer computes the output of one request. Triton's backends read and write shared memory where it is; so does this.
func (e *emulated) answer(r *request) response {
	in := &r.inputs[0]
	data := in.data
	if in.place != nil {
		if data = in.place.pin(); data == nil {
			return response{err: refuse(codes.Unavailable, "the shared memory of input '%s' was dropped", in.name)}
		}
		defer in.place.unpin(data)
	}
	out := tensor{name: e.output, dtype: in.dtype, shape: in.shape}
	if want := r.requested(e.output); want != nil && want.place != nil {
		window := want.place.pin()
		defer want.place.unpin(window)
		if out.placed = len(data) <= len(window); out.placed {
			affine(window, data)
			return response{outputs: []tensor{out}}
		}
	}
	out.data = affine(make([]byte, len(data)), data)
	return response{outputs: []tensor{out}}
}

// affine makes 2x+1 of every float32 in out, and returns it.
func affine(out, data []byte) []byte {
	for i := 0; i+4 <= len(data); i += 4 {
		x := math.Float32frombits(binary.LittleEndian.Uint32(data[i:]))
		binary.LittleEndian.PutUint32(out[i:], math.Float32bits(2*x+1))
	}
	return out
}

// newExecutor chooses how a model runs: emulated, built in, or not at all, with Triton's error for a missing backend.
func newExecutor(c *pb.ModelConfig, version int64, p *place) (executor, error) {
	e, ok, err := parseEmulation(c)
	if err != nil {
		return nil, err
	}
	if ok {
		return newEmulated(c, e, p)
	}
	if name := parameter(c, "conch_builtin"); name != "" && c.Backend == "python" {
		return newBuiltin(name, c, version, p)
	}
	return nil, invalid("unable to find backend library for backend '%s', try specifying runtime on the model configuration.", c.Backend)
}

// checkKind refuses instances on a GPU: minitriton has none, as a Triton built for CPUs.
func checkKind(c *pb.ModelConfig) error {
	for _, g := range c.InstanceGroup {
		if g.Kind == pb.ModelInstanceGroup_KIND_GPU {
			return invalid("instance group %s of model %s has kind KIND_GPU but no GPUs are available", g.Name, c.Name)
		}
	}
	return nil
}
