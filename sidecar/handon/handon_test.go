// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/handon"
)

// What the owner answers reaches the client untouched: results, errors, headers, by both protocols, and the time that remains reaches the owner.
func TestTheOwnersAnswers(t *testing.T) {
	o := newOwner(t, "a", listen(t), listen(t))
	r := newReplica(t, "b")
	require.ErrorContains(t, r.Ready(), "no replica is known")
	r.Follow(o.Owner)
	require.Eventually(t, func() bool { return r.Ready() == nil }, 30*time.Second, time.Millisecond)

	var header metadata.MD
	answer, err := r.client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "m", Id: "1"}, grpc.Header(&header))
	require.NoError(t, err)
	require.Equal(t, "a", answer.GetModelName())
	require.Equal(t, []string{"a"}, header.Get("executed-by"))
	_, err = r.client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "absent"})
	require.Equal(t, status.Error(codes.NotFound, "Request for unknown model: 'absent' is not found").Error(), err.Error())
	_, err = r.client.ServerMetadata(t.Context(), &tritonpb.ServerMetadataRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err), "the owner's answer to a method that it does not have")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	answer, err = r.client.ModelInfer(ctx, &tritonpb.ModelInferRequest{ModelName: "deadline"})
	require.NoError(t, err)
	require.Equal(t, "5m0s", answer.GetModelName())

	text, err := r.post(t.Context(), "/v2/models/m%2Fn/infer?x=1;2", "{}")
	require.NoError(t, err)
	require.Equal(t, "a /v2/models/m%2Fn/infer?x=1;2", text)
	for _, mark := range o.marks {
		require.Equal(t, "b", mark)
	}
	_, err = r.post(t.Context(), "/v2/models/m/infer", strings.Repeat("x", 2<<20))
	require.ErrorContains(t, err, "413")

	metrics, err := http.Get("http://" + r.Address("metrics").String() + "/metrics") //nolint:noctx // a test
	require.NoError(t, err)
	page, err := io.ReadAll(metrics.Body)
	require.NoError(t, err)
	require.NoError(t, metrics.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	require.Contains(t, string(page), `conch_handed_on_requests_total{outcome="answered",protocol="grpc"} 4`)
	require.Contains(t, string(page), `conch_handed_on_requests_total{outcome="answered",protocol="http"} 1`)
	require.Contains(t, string(page), `conch_handed_on_requests_total{outcome="refused",protocol="http"} 1`)
}

// A replica that has accepted a request and may not execute it hands it on without a door of its own: once, and with what is left of its time.
func TestARequestThatWasAcceptedIsHandedOn(t *testing.T) {
	o := newOwner(t, "a", listen(t), listen(t))
	f, err := handon.New(handon.Options{Name: "b", Patience: 5 * time.Minute, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close(time.Second)) }()
	infer := func(ctx context.Context, model string) (string, error) {
		text, err := proto.Marshal(&tritonpb.ModelInferRequest{ModelName: model})
		require.NoError(t, err)
		data, err := f.Infer(ctx, mem.BufferSlice{mem.SliceBuffer(text)})
		if err != nil {
			return "", err
		}
		defer data.Free()
		var answer tritonpb.ModelInferResponse
		require.NoError(t, proto.Unmarshal(data.Materialize(), &answer))
		return answer.GetModelName(), nil
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = infer(short, "m")
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "nobody owns yet")
	f.Follow(o.Owner)
	name, err := infer(t.Context(), "m")
	require.NoError(t, err)
	require.Equal(t, "a", name)
	_, err = infer(t.Context(), "absent")
	require.Equal(t, status.Error(codes.NotFound, "Request for unknown model: 'absent' is not found").Error(), err.Error())
	marked := metadata.NewIncomingContext(t.Context(), metadata.Pairs("conch-handed-on", "c"))
	_, err = infer(marked, "m")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, batch.Exiting, status.Convert(err).Message(), "replica c sends it to the owner itself")
	require.Equal(t, []string{"b"}, o.marks, "of that which was executed")
}

// A stream is one stream at the owner, and ends with it.
func TestAStream(t *testing.T) {
	o := newOwner(t, "a", listen(t), listen(t))
	r := newReplica(t, "b")
	r.Follow(o.Owner)
	s, err := r.client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, s.Send(&tritonpb.ModelInferRequest{Id: fmt.Sprint(i)}))
		a, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), a.GetInferResponse().GetId())
	}
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)

	s, err = r.client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&tritonpb.ModelInferRequest{Id: "x"}))
	_, err = s.Recv()
	require.NoError(t, err)
	o.kill()
	_, err = s.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "replica a, which owned the models of this stream, has ended")
}

// Requests wait for an owner, for as long as they have time. Questions for health do not.
func TestRequestsWaitForAnOwner(t *testing.T) {
	o := newOwner(t, "a", listen(t), listen(t))
	r := newReplica(t, "b")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := r.infer(short, "1")
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	_, err = r.client.ServerLive(t.Context(), &tritonpb.ServerLiveRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "no replica is known to own the models")

	answers := make(chan error, 2)
	go func() { _, err := r.infer(t.Context(), "2"); answers <- err }()
	go func() { _, err := r.post(t.Context(), "/v2/models/m/infer", "{}"); answers <- err }()
	require.Eventually(t, func() bool { return underWay(t, r.Front) == 2 }, 30*time.Second, time.Millisecond, "both wait")
	r.Follow(o.Owner)
	require.NoError(t, <-answers)
	require.NoError(t, <-answers)
	require.Zero(t, sentAgain(t, r.Front), "what waits is not sent")
}

// Two replicas that each take the other for the owner hand a request on once: it comes back, and ends when its time is over.
func TestNoRequestMakesTwoHops(t *testing.T) {
	a := newReplica(t, "a", func(o *handon.Options) { o.Patience = 300 * time.Millisecond })
	b := newReplica(t, "b")
	a.Follow(b.self("b"))
	b.Follow(a.self("a"))
	_, err := a.infer(t.Context(), "1")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "replica b, which owns the models, took no request in time")
	_, err = a.post(t.Context(), "/v2/models/m/infer", "{}")
	require.ErrorContains(t, err, "took no request in time")
	require.ErrorContains(t, a.Ready(), "b owns the release's servers, and does not serve yet")

	// And a replica that takes itself for the owner, before it serves.
	a.Follow(a.self("a"))
	_, err = a.infer(t.Context(), "2")
	require.ErrorContains(t, err, "replica a, which owns the models, took no request in time")
	marked := metadata.AppendToOutgoingContext(t.Context(), "conch-handed-on", "c")
	_, err = b.infer(marked, "3")
	require.ErrorContains(t, err, "replica b owns no models, and replica c has handed this request on already")
}

// The owner is killed under load, and another takes its place: no request is lost.
func TestTheOwnerIsKilled(t *testing.T) {
	first, second := newOwner(t, "first", listen(t), listen(t)), newOwner(t, "second", listen(t), listen(t))
	r := newReplica(t, "b")
	r.Follow(first.Owner)
	end, _ := r.load()
	require.Eventually(t, func() bool { return first.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	first.kill()
	require.Eventually(t, func() bool { return underWay(t, r.Front) == 4 }, 30*time.Second, time.Millisecond, "all wait")
	r.Follow(second.Owner)
	require.Eventually(t, func() bool { return second.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	by := end()
	require.Positive(t, by["first"])
	require.Positive(t, by["second"])
}

// The owner is paused while it holds requests: when another owns, they go there.
func TestTheOwnerIsPaused(t *testing.T) {
	first, second := newOwner(t, "first", listen(t), listen(t)), newOwner(t, "second", listen(t), listen(t))
	paused := make(chan struct{})
	first.hold.Store(&paused)
	r := newReplica(t, "b")
	r.Follow(first.Owner)
	end, _ := r.load()
	require.Eventually(t, func() bool { return first.began.Load() == 4 }, 30*time.Second, time.Millisecond)
	r.Follow(second.Owner)
	require.Eventually(t, func() bool { return second.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	require.NotContains(t, end(), "first")
}

// An owner that ends in order refuses new requests, which go to the next one: each is executed once.
func TestTheOwnerDrains(t *testing.T) {
	first, second := newOwner(t, "first", listen(t), listen(t)), newOwner(t, "second", listen(t), listen(t))
	r := newReplica(t, "b")
	r.Follow(first.Owner)
	end, soFar := r.load()
	require.Eventually(t, func() bool { return first.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	first.refuses(batch.Exiting)
	require.Eventually(t, func() bool { return soFar("first") == first.began.Load() }, 30*time.Second, time.Millisecond, "what it accepted it has answered")
	r.Follow(second.Owner)
	require.Eventually(t, func() bool { return second.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	by := end()
	require.EqualValues(t, first.began.Load(), by["first"])
	require.EqualValues(t, second.began.Load(), by["second"])
}

// An owner that has no routes yet executes nothing: requests wait until it has.
func TestAnOwnerThatIsNotReady(t *testing.T) {
	o := newOwner(t, "a", listen(t), listen(t))
	o.refuses(batch.NotReady)
	r := newReplica(t, "b")
	r.Follow(o.Owner)
	answers := make(chan error, 2)
	go func() { _, err := r.infer(t.Context(), "1"); answers <- err }()
	go func() { _, err := r.post(t.Context(), "/v2/models/m/infer", "{}"); answers <- err }()
	require.Eventually(t, func() bool { return o.came() >= 4 }, 30*time.Second, time.Millisecond, "they are sent again")
	o.refuses("")
	require.NoError(t, <-answers)
	require.NoError(t, <-answers)
	require.EqualValues(t, 2, o.began.Load())
}

// What an owner may have executed is sent to one more, and not at all where it belongs to a sequence.
func TestWhatIsSentAgain(t *testing.T) {
	for _, c := range []struct {
		name     string
		sequence bool
		encoding string // of the body, which may hide a sequence
		want     codes.Code
	}{{"alone", false, "", codes.OK}, {"in a sequence", true, "", codes.Unavailable}, {"compressed", false, "gzip", codes.OK}} {
		t.Run(c.name, func(t *testing.T) {
			first, second := newOwner(t, "first", listen(t), listen(t)), newOwner(t, "second", listen(t), listen(t))
			held := make(chan struct{})
			first.hold.Store(&held)
			r := newReplica(t, "b")
			r.Follow(first.Owner)
			request := &tritonpb.ModelInferRequest{ModelName: "m"}
			body := "{}"
			if c.sequence {
				request.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}}}
				body = `{"parameters": {"sequence_id": 7}}`
			}
			answers := make(chan error, 2)
			go func() { _, err := r.client.ModelInfer(t.Context(), request); answers <- err }()
			require.Eventually(t, func() bool { return first.began.Load() == 1 }, 30*time.Second, time.Millisecond)
			web := make(chan error, 1)
			go func() {
				_, err := r.post(t.Context(), "/v2/models/m/infer", body, "Content-Encoding", c.encoding)
				web <- err
			}()
			require.Eventually(t, func() bool { return first.began.Load() == 2 }, 30*time.Second, time.Millisecond)
			r.Follow(second.Owner)
			require.Equal(t, c.want, status.Code(<-answers))
			if c.sequence || c.encoding != "" {
				require.ErrorContains(t, <-web, "ended or was cut off before it answered")
			} else {
				require.NoError(t, <-web)
			}
		})
	}
}

// This replica becomes the owner under load: its doors pass to the servers that execute, and no connection is refused.
func TestThisReplicaBecomesTheOwner(t *testing.T) {
	first := newOwner(t, "first", listen(t), listen(t))
	r := newReplica(t, "b")
	r.Follow(first.Owner)
	end, _ := r.load()
	require.Eventually(t, func() bool { return first.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	first.kill()
	r.Follow(r.self("b"))
	grpcDoor, httpDoor := r.Take("grpc"), r.Take("http")
	require.Nil(t, r.Take("grpc"), "a door is given once")
	second := newOwner(t, "b", grpcDoor, httpDoor)
	require.Eventually(t, func() bool { return second.began.Load() > 50 }, 30*time.Second, time.Millisecond)
	by := end()
	require.Positive(t, by["b"])
}

// A scrape keeps its connection: once the metrics are another server's, they are so for it, too.
func TestMetricsOverAConnectionThatIsKept(t *testing.T) {
	r := newReplica(t, "b")
	at := "http://" + r.Address("metrics").String() + "/metrics"
	scrape := func() string {
		answer, err := r.web.Get(at) //nolint:noctx // a test
		require.NoError(t, err)
		page, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return string(page)
	}
	require.Contains(t, scrape(), "conch_handing_on_requests")
	next := &httptest.Server{Listener: r.Take("metrics"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "the owner's")
	})}}
	next.Start()
	defer next.Close()
	require.Eventually(t, func() bool { return scrape() == "the owner's" }, 30*time.Second, time.Millisecond)
}

// Doors may be taken, and owners change, while a front is closed: nothing is left of it.
func TestCloseBesideTheRest(t *testing.T) {
	r := newReplica(t, "b")
	var all sync.WaitGroup
	for _, key := range []string{"grpc", "http", "metrics"} {
		all.Go(func() {
			if l := r.Take(key); l != nil {
				_ = l.Close() // the caller's
			}
		})
	}
	all.Go(func() { r.Follow(handon.Owner{Name: "c", GRPC: "127.0.0.1:1"}) })
	all.Go(func() { _ = r.Close(time.Second) }) // said again below
	all.Wait()
	require.NoError(t, r.Close(time.Second))
	r.Follow(handon.Owner{Name: "d", GRPC: "127.0.0.1:1"})
}

// Beyond the limits requests are refused at once.
func TestLimits(t *testing.T) {
	r := newReplica(t, "b", func(o *handon.Options) { o.Requests = 2 })
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = r.infer(ctx, "waits") }()
	}
	require.Eventually(t, func() bool { return underWay(t, r.Front) == 2 }, 30*time.Second, time.Millisecond)
	_, err := r.infer(t.Context(), "3")
	require.ErrorContains(t, err, "Exceeds maximum queue size")
	_, err = r.post(t.Context(), "/v2/models/m/infer", "{}")
	require.ErrorContains(t, err, "HTTP 503")

	small := newReplica(t, "c", func(o *handon.Options) { o.Bytes = 1 << 10 })
	_, err = small.post(t.Context(), "/v2/models/m/infer", strings.Repeat("x", 1<<19))
	require.ErrorContains(t, err, "Exceeds maximum queue size: 1024 bytes of requests are under way")
}

// A request that is larger than all that may be held is refused while it comes: nothing of it stays, and nothing else ends.
func TestARequestThatIsTooMuchAtOnce(t *testing.T) {
	r := newReplica(t, "b", func(o *handon.Options) { o.Bytes, o.MessageBytes = 1<<20, 8<<20 })
	large := &tritonpb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, 4<<20)}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := r.client.ModelInfer(ctx, large)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "Exceeds maximum queue size: 1048576 bytes of requests are under way")

	o := newOwner(t, "a", listen(t), listen(t))
	r.Follow(o.Owner)
	require.Eventually(t, func() bool { // what is still on its way of the large one counts until it is known to be of none
		_, err := r.infer(ctx, "1")
		return err == nil
	}, 30*time.Second, time.Millisecond)
}

// A request of a sequence is not sent again where its owner's connection broke, whether or not the owner had announced its end.
func TestASequenceAtAnOwnerThatEnds(t *testing.T) {
	for _, announced := range []bool{false, true} {
		t.Run(fmt.Sprintf("announced %v", announced), func(t *testing.T) {
			first := newOwner(t, "first", listen(t), listen(t))
			held := make(chan struct{})
			first.hold.Store(&held)
			r := newReplica(t, "b")
			r.Follow(first.Owner)
			answer := make(chan error, 1)
			go func() {
				_, err := r.client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "m", Parameters: map[string]*tritonpb.InferParameter{
					"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}},
				}})
				answer <- err
			}()
			require.Eventually(t, func() bool { return first.began.Load() == 1 }, 30*time.Second, time.Millisecond)
			ending := make(chan struct{})
			if announced {
				go func() { defer close(ending); first.grpc.GracefulStop() }()
				require.Eventually(t, func() bool { // the replica begins nothing on that connection any more, and the owner takes no other
					_, err := r.client.ServerLive(t.Context(), &tritonpb.ServerLiveRequest{})
					return err != nil
				}, 30*time.Second, time.Millisecond)
			} else {
				close(ending)
			}
			first.kill()
			<-ending
			require.ErrorContains(t, <-answer, "replica first, which owned the models, ended or was cut off before it answered")
		})
	}
}

// A request that breaks its connection while its owner goes on is sent there once more, and then no more.
func TestARequestThatBreaksItsConnection(t *testing.T) {
	forGRPC, forHTTP := &breakable{Listener: listen(t)}, &breakable{Listener: listen(t)}
	o := newOwner(t, "a", forGRPC, forHTTP)
	o.breaks = func() { forGRPC.breakAll(); forHTTP.breakAll() }
	r := newReplica(t, "b")
	r.Follow(o.Owner)
	_, err := r.infer(t.Context(), "1")
	require.ErrorContains(t, err, "whether it executed the request is not known")
	require.EqualValues(t, 2, o.began.Load())
	_, err = r.post(t.Context(), "/v2/models/m/infer", "{}")
	require.ErrorContains(t, err, "whether it executed the request is not known")
	require.EqualValues(t, 4, o.began.Load())
	require.Equal(t, 2, sentAgain(t, r.Front))
}

// A body may take as long as it needs, if some of it keeps coming.
func TestASlowBody(t *testing.T) {
	const stall = 2 * time.Second
	o := newOwner(t, "a", listen(t), listen(t))
	r := newReplica(t, "b", func(o *handon.Options) { o.Stall = stall })
	r.Follow(o.Owner)
	post := func(pieces int) int {
		body, write := io.Pipe()
		defer func() { _ = write.Close() }()
		go func() {
			for range pieces {
				_, _ = write.Write([]byte("x")) // fails once the request is over
				time.Sleep(stall / 4)
			}
			if pieces > 1 {
				_ = write.Close()
			}
		}()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v2/models/m/infer", body)
		require.NoError(t, err)
		a, err := r.web.Do(q)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		return a.StatusCode
	}
	require.Equal(t, http.StatusOK, post(5))
	require.Equal(t, http.StatusServiceUnavailable, post(1), "nothing more comes")
}

// TestAnIdempotencyKeyChangesNothing: with one, net/http sends a request by itself again on each idle connection. What may belong to a sequence is sent once, and
// anything else twice at most.
func TestAnIdempotencyKeyChangesNothing(t *testing.T) {
	var executed atomic.Int32
	owner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "" {
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			executed.Add(1)
		}
		panic(http.ErrAbortHandler) // the connection breaks
	}))
	defer owner.Close()
	r := newReplica(t, "b")
	r.Follow(handon.Owner{Name: "a", HTTP: strings.TrimPrefix(owner.URL, "http://")})
	for body, most := range map[string]int32{`{"parameters": {"sequence_id": 7}}`: 1, `{}`: 2} {
		executed.Store(0)
		var idle sync.WaitGroup
		for range 8 { // connections that are used again
			idle.Go(func() {
				_, err := r.post(t.Context(), "/v2/models/m/infer", "{}")
				assert.NoError(t, err)
			})
		}
		idle.Wait()
		_, err := r.post(t.Context(), "/v2/models/m/infer", body, "Idempotency-Key", "1")
		require.ErrorContains(t, err, "whether it executed the request is not known")
		require.LessOrEqual(t, executed.Load(), most, body)
		require.Positive(t, executed.Load(), body)
	}
}
