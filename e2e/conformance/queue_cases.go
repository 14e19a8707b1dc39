// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// taking is a request of a model that takes ms milliseconds for it.
func taking(model, name string, ms float32, options ...option) *pb.ModelInferRequest {
	return request(model, append([]option{input("INPUT0", "FP32", shape(1, 1), fp32(ms)), id(name)}, options...)...)
}

// queuedRun sends requests of the model queued behind others that keep every partition busy meanwhile.
type queuedRun struct {
	e     *Env
	gate  *gate
	all   sync.WaitGroup
	mu    sync.Mutex
	sent  int
	order []string // ids in the order of their answers
	errs  map[string]error
}

// partitions are those of the target.
func (e *Env) partitions() int { return max(1, e.Target.Partitions) }

// busy makes a target busy: a request of the highest priority for every partition, which goes where the fewest are. They execute when it
// returns, until the run ends.
func (e *Env) busy() *queuedRun {
	e.Helper()
	q := &queuedRun{e: e, gate: e.close("queued"), errs: map[string]error{}}
	for i := range e.partitions() {
		q.send(taking("queued", fmt.Sprintf("busy %d", i), 0, parameter("priority", 1)))
		q.gate.executes(i + 1) // before the next: together they could share an execution
	}
	return q
}

func (q *queuedRun) send(requests ...*pb.ModelInferRequest) {
	ctx := q.e.ctx()
	q.sent += len(requests)
	for _, r := range requests {
		q.all.Go(func() {
			_, err := q.e.Client.Stub.ModelInfer(ctx, r)
			q.mu.Lock()
			defer q.mu.Unlock()
			q.order, q.errs[r.Id] = append(q.order, r.Id), err
		})
	}
}

// inLine waits until all that was sent is in line or answered, and so are more requests that came another way, of which others have their
// answers.
func (q *queuedRun) inLine(more int, others ...func() int) {
	q.e.Helper()
	q.gate.holds(q.sent+more, func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		n := len(q.order)
		for _, answered := range others {
			n += answered()
		}
		return n
	})
}

// outlasted is inLine, and timeouts of a millisecond are over. A server that was slow to look at its queue has refused what timed out, and
// counts it no longer.
func (q *queuedRun) outlasted(more int, others ...func() int) {
	q.e.Helper()
	q.inLine(more, others...)
	time.Sleep(5 * time.Millisecond)
}

// countedStream counts the messages that were received.
type countedStream struct {
	grpc.BidiStreamingClient[pb.ModelInferRequest, pb.ModelStreamInferResponse]
	received atomic.Int64
}

func (s *countedStream) Recv() (*pb.ModelStreamInferResponse, error) {
	m, err := s.BidiStreamingClient.Recv()
	if err == nil {
		s.received.Add(1)
	}
	return m, err
}

// end lets what is in line execute and waits for all answers.
func (q *queuedRun) end() {
	q.e.Helper()
	q.inLine(0)
	q.gate.open()
	q.all.Wait()
}

// rounds lets what is in line execute, and waits for all answers. Every partition executes one of them when a round is over, as long as there are as many, and all of these are answered before
// anything else executes: a server that is slow to begin, or to answer, changes nothing in the order.
func (q *queuedRun) rounds() {
	q.e.Helper()
	answers := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.order)
	}
	for q.inLine(0); answers() < q.sent; {
		before := answers()
		q.gate.executes(min(q.e.partitions(), q.sent-before))
		begun := q.gate.begun()
		q.gate.release(begun)
		q.e.until(func() bool { return answers() == before+len(begun) }, time.Millisecond, "%d executions of queued are answered", len(begun))
	}
	q.all.Wait()
}

// several are n requests of a name, with numbers.
func several(n int, name string, ms float32, options ...option) []*pb.ModelInferRequest {
	requests := make([]*pb.ModelInferRequest, n)
	for i := range requests {
		requests[i] = taking("queued", name+" "+strconv.Itoa(i), ms, options...)
	}
	return requests
}

// answered wants answers to all requests of a name.
func (q *queuedRun) answered(requests []*pb.ModelInferRequest) {
	q.e.Helper()
	for _, r := range requests {
		require.NoError(q.e, q.errs[r.Id], r.Id)
	}
}

func (q *queuedRun) expired(requests []*pb.ModelInferRequest) {
	q.e.Helper()
	for _, r := range requests {
		q.e.refused(q.errs[r.Id], codes.Unavailable, "Request timeout expired")
	}
}

// after is how many of the requests were answered after the one named.
func (q *queuedRun) after(name string, requests []*pb.ModelInferRequest) int {
	n, from := 0, slices.Index(q.order, name)
	for _, r := range requests {
		if slices.Index(q.order, r.Id) > from {
			n++
		}
	}
	return n
}

// queueCases are priorities, queue policies and the order of answers. What of them a client can see is the same over one partition and
// over three, each of which has a queue of its own.
func queueCases() []Case {
	cases := []Case{
		{"priority/a full queue", func(e *Env) {
			before := e.quiet("queued")
			q := e.busy()
			crowd := several(12, "crowd", 0, parameter("priority", 3))
			q.send(crowd...)
			q.end()
			refused := 0
			for _, r := range crowd {
				if q.errs[r.Id] == nil {
					continue
				}
				refused++
				e.refused(q.errs[r.Id], codes.Unavailable, "[request id: "+r.Id+"] Exceeds maximum queue size")
			}
			require.GreaterOrEqual(e, refused, 12-2*e.partitions())
			require.GreaterOrEqual(e, 12-refused, 2, "two may wait")
			after := e.settled(before, uint64(e.partitions()+12-refused))
			require.Equal(e, before.InferenceStats.Success.Count+uint64(e.partitions()+12-refused), after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.Fail.Count, after.InferenceStats.Fail.Count, "what is not queued is not counted")
		}},
		{"priority/a full queue, of requests that share no execution", func(e *Env) {
			q := e.busy()
			q.send(several(2*e.partitions(), "crowd", 0, parameter("priority", 3))...)
			q.inLine(0)
			wanted := taking("queued", "classes", 0, parameter("priority", 3), classes("OUTPUT0", 1))
			q.send(wanted)
			q.end()
			e.refused(q.errs["classes"], codes.Unavailable, "[request id: classes] Exceeds maximum queue size")
		}},
		{"priority/a timeout that is over, of a request that shares no execution", func(e *Env) {
			q := e.busy()
			wanted := taking("queued", "classes", 0, parameter("timeout", 1000), classes("OUTPUT0", 1))
			q.send(wanted)
			q.outlasted(0)
			q.end()
			q.expired([]*pb.ModelInferRequest{wanted})
		}},
		{"priority/a full queue over HTTP", func(e *Env) {
			q := e.busy()
			q.send(several(12, "crowd", 0, parameter("priority", 3))...)
			q.inLine(0)
			e.wantHTTP(e.call("POST", inferPath("queued"), `{"id":"h","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[0]}],"parameters":{"priority":3}}`), 503, jsonType,
				errorJSON("[request id: h] Exceeds maximum queue size"))
			q.end()
		}},
		{"priority/a timeout that is over", func(e *Env) {
			before := e.quiet("queued")
			q := e.busy()
			hasty, patient := several(3, "hasty", 0, parameter("timeout", 1000)), several(3, "patient", 0)
			strict := several(2, "strict", 0, parameter("priority", 5), parameter("timeout", 10_000_000)) // a caller cannot wait for longer than the policy says
			q.send(slices.Concat(hasty, patient, strict)...)
			q.outlasted(0)
			q.end()
			q.expired(hasty)
			q.expired(strict)
			q.answered(patient)
			served := uint64(e.partitions() + len(patient))
			after := e.settled(before, served+5)
			require.Equal(e, before.InferenceStats.Success.Count+served, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.Fail.Count+5, after.InferenceStats.Fail.Count)
		}},
		{"priority/a timeout that is over, over HTTP", func(e *Env) {
			q := e.busy()
			answer := later(func() reply {
				return e.call("POST", inferPath("queued"), `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[0]}],"parameters":{"timeout":1000}}`)
			})
			q.outlasted(1, func() int { return len(answer) })
			q.gate.open()
			e.wantHTTP(<-answer, 503, textPlain, errorJSON("Request timeout expired"))
			q.all.Wait()
		}},
		{"priority/put off or left to wait, not refused", func(e *Env) {
			q := e.busy()
			late := several(3, "late", 0, parameter("priority", 6))
			calm := several(3, "calm", 0, parameter("priority", 4), parameter("timeout", 1)) // no policy has a timeout that it could shorten
			q.send(slices.Concat(late, calm)...)
			q.outlasted(0)
			q.end()
			q.answered(late)
			q.answered(calm)
		}},
		{"priority/over HTTP config", func(e *Env) {
			r := e.call("GET", "/v2/models/queued/config", "")
			require.Equal(e, http.StatusOK, r.status)
			require.Contains(e, r.body, `"default_queue_policy":{"timeout_action":"REJECT","default_timeout_microseconds":10000000,"allow_timeout_override":true,"max_queue_size":0}`)
			require.Contains(e, r.body, `"priority_levels":6,"default_priority_level":2,`)
			require.Contains(e, r.body, `"3":{"timeout_action":"REJECT","default_timeout_microseconds":0,"allow_timeout_override":false,"max_queue_size":2}`)
			require.Contains(e, r.body, `"6":{"timeout_action":"DELAY","default_timeout_microseconds":1000,"allow_timeout_override":false,"max_queue_size":0}`)
		}},
		{"priority/an answer waits for those before it", func(e *Env) {
			before, gate, ctx := e.quiet("ordered"), e.close("ordered"), e.ctx()
			send := func(name string) <-chan error {
				return later(func() error {
					_, err := e.Client.Stub.ModelInfer(ctx, taking("ordered", name, 0))
					return err
				})
			}
			first := send("first")
			gate.executes(1)
			gate.pass()
			second := send("second")
			e.executed(before, 1)
			select {
			case <-second:
				e.Errorf("the second request was answered before the first")
			case <-time.After(30 * time.Millisecond): // an answer would have come by now
			}
			gate.open()
			require.NoError(e, <-first)
			require.NoError(e, <-second)
		}},
	}
	cases = append(cases, queuedStepCases()...)
	cases = append(cases, Case{"priority/a high one goes first, and what names none that there is goes as the default", func(e *Env) {
		q := e.busy()
		low := several(9, "low", 0, parameter("priority", 4))
		q.send(low...)
		q.inLine(0)
		for name, options := range map[string][]option{"one": {parameter("priority", 1)}, "beyond": {parameter("priority", 99)}, "zero": {parameter("priority", 0)}, "none": nil} {
			q.send(taking("queued", name, 0, options...))
		}
		q.rounds()
		q.answered(low)
		for _, name := range []string{"one", "beyond", "zero", "none"} {
			require.NoError(e, q.errs[name], name)
			require.GreaterOrEqual(e, q.after(name, low), 2, "%s was sent last, and those in line on its partition were answered after it: %v", name, q.order)
		}
	}})
	return append(cases, Case{"priority/on a stream", func(e *Env) {
		q := e.busy()
		s, err := e.Client.Stub.ModelStreamInfer(e.ctx())
		require.NoError(e, err)
		stream := &countedStream{BidiStreamingClient: s}
		lines := later(func() []string {
			messages, err := drive(stream, []*pb.ModelInferRequest{taking("queued", "t", 0, parameter("timeout", 1000)), taking("queued", "u", 0)})
			require.NoError(e, err)
			return summaries(messages)
		})
		q.outlasted(2, func() int { return int(stream.received.Load()) })
		q.gate.open()
		require.Equal(e, []string{"t|queued||final|error: Request timeout expired", "u|queued|1|final|" + hex(fp32(0))}, <-lines)
		q.all.Wait()
	}}, Case{"priority/a caller that goes while it waits", func(e *Env) {
		q := e.busy()
		ctx, cancel := context.WithCancel(e.Context())
		defer cancel()
		gone := later(func() error {
			_, err := e.Client.Stub.ModelInfer(ctx, taking("queued", "gone", 0))
			return err
		})
		q.inLine(1)
		cancel()
		err := <-gone
		require.Equal(e, codes.Canceled, status.Code(err), "%v", err)
		q.gate.open()
		q.all.Wait()
		e.infer(taking("queued", "next", 0))
	}})
}

// queuedStepCases ask an ensemble whose steps' model has a queue policy: the policy holds for each step, with the priority and the timeout of the whole, and
// the refusal of a step is that of the whole, in its name.
func queuedStepCases() []Case {
	whole := func(n int, name string, options ...option) []*pb.ModelInferRequest {
		all := make([]*pb.ModelInferRequest, n)
		for i := range all {
			all[i] = request("pipeline_queued", append([]option{input("X", "FP32", shape(1, 1), fp32(0)), id(name + " " + strconv.Itoa(i))}, options...)...)
		}
		return all
	}
	return []Case{
		{"priority/a timeout that is over, of an ensemble's step", func(e *Env) {
			q := e.busy()
			hasty, strict, patient := whole(2, "hasty", parameter("timeout", 1000)), whole(2, "strict", parameter("priority", 5)), whole(2, "patient", parameter("priority", 4))
			q.send(slices.Concat(hasty, strict, patient)...)
			q.outlasted(0)
			q.end()
			for _, r := range slices.Concat(hasty, strict) {
				e.refused(q.errs[r.Id], codes.Unavailable, "in ensemble 'pipeline_queued', Request timeout expired")
			}
			q.answered(patient)
		}},
		{"priority/put off or left to wait, not refused, as an ensemble's step", func(e *Env) {
			q := e.busy()
			late := whole(2, "late", parameter("priority", 6))
			calm := whole(2, "calm", parameter("priority", 4), parameter("timeout", 1)) // no policy has a timeout that it could shorten
			q.send(slices.Concat(late, calm)...)
			q.outlasted(0)
			q.end()
			q.answered(late)
			q.answered(calm)
		}},
		{"priority/a full queue, of an ensemble's step", func(e *Env) {
			q := e.busy()
			crowd := whole(12, "crowd", parameter("priority", 3))
			q.send(crowd...)
			q.end()
			refused := 0
			for _, r := range crowd {
				if q.errs[r.Id] != nil {
					refused++
					e.refused(q.errs[r.Id], codes.Unavailable, "in ensemble 'pipeline_queued', [request id: "+r.Id+"] Exceeds maximum queue size")
				}
			}
			require.GreaterOrEqual(e, refused, 12-2*e.partitions())
		}},
	}
}
