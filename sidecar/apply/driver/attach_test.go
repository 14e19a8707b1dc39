// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// others is a server that others run.
type others struct {
	t          *testing.T
	repository string
	control    minitriton.Control
	server     *minitriton.Server
	at         Endpoint
}

func (o *others) start(load ...string) {
	o.t.Helper()
	s, err := minitriton.New(minitriton.Options{Repository: o.repository, Control: o.control, Load: load})
	require.NoError(o.t, err)
	listeners, err := minitriton.Loopback()
	if o.at != (Endpoint{}) {
		listeners, err = minitriton.Listen(o.at.GRPC, o.at.HTTP, o.at.Metrics)
	}
	require.NoError(o.t, err)
	require.NoError(o.t, s.Start(context.WithoutCancel(o.t.Context()), listeners))
	o.server, o.at = s, Endpoint(s.Endpoint())
}

func someone(t *testing.T, control minitriton.Control, load ...string) *others {
	o := &others{t: t, repository: t.TempDir(), control: control}
	for _, name := range []string{"a", "b"} {
		emulated(t, o.repository, name)
		config := filepath.Join(o.repository, name, "config.pbtxt")
		text, err := os.ReadFile(config)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(config, append(text, "dynamic_batching { max_queue_delay_microseconds: 700 }\n"...), 0o644))
	}
	o.start(load...)
	t.Cleanup(func() { require.NoError(t, o.server.Close()) })
	return o
}

// watchful asks often, and waits so long for the answer that a busy machine makes no server seem to hang.
var watchful = Health{Period: 10 * time.Millisecond, Deadline: 30 * time.Second}

// attachTo makes a driver in front of servers, and a channel that tells of changes.
func attachTo(t *testing.T, health Health, all ...*others) (*Attached, chan string) {
	t.Helper()
	var endpoints []AttachEndpoint
	for i, o := range all {
		endpoints = append(endpoints, AttachEndpoint{GPU: string(rune('A' + i)), Endpoint: o.at})
	}
	d, err := NewAttached(AttachOptions{Endpoints: endpoints, Health: health})
	require.NoError(t, err)
	changes := make(chan string, 100)
	d.Watch(func(reason string) { changes <- reason })
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d, changes
}

func attachPartition(t *testing.T, d *Attached, gpu string) Server {
	s, err := d.Start(t.Context(), Spec{Partition: &policy.Partition{Id: gpu, Gpus: []string{gpu}, ThreadPercentage: 100}, GPU: &policy.GPU{Id: gpu}})
	require.NoError(t, err)
	return s
}

func names(s EndpointState) []string {
	var all []string
	for _, m := range s.Models {
		all = append(all, m.Name)
	}
	return all
}

// What others load and unload is followed.
func TestAttachFollowsTheIndex(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a")
	d, changes := attachTo(t, watchful, o)
	states, err := d.States(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names(states[0]))
	require.EqualValues(t, 8, states[0].Models[0].Config.GetMaxBatchSize())
	require.Equal(t, []int64{1}, states[0].Models[0].Versions)
	<-changes

	require.NoError(t, o.server.Load(t.Context(), "b"))
	<-changes
	require.NoError(t, o.server.Unload(t.Context(), "a"))
	<-changes
	require.Eventually(t, func() bool {
		states, err = d.States(t.Context())
		return err == nil && len(names(states[0])) == 1 && names(states[0])[0] == "b"
	}, 30*time.Second, 5*time.Millisecond)
}

// A model of which only a load request has the files is in no index, and followed
// nevertheless.
func TestAttachFollowsWhatTheIndexLeavesOut(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a")
	d, _ := attachTo(t, watchful, o)
	client, err := triton.Dial(o.at.GRPC)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	config := `{"backend":"python","max_batch_size":4,"input":[{"name":"INPUT0","data_type":"TYPE_FP32","dims":[-1]}],` +
		`"output":[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[-1]}],"parameters":{"conch_builtin":{"string_value":"identity"}}}`
	order := &tritonpb.RepositoryModelLoadRequest{ModelName: "fresh", Parameters: map[string]*tritonpb.ModelRepositoryParameter{
		"config":          {ParameterChoice: &tritonpb.ModelRepositoryParameter_StringParam{StringParam: config}},
		"file:7/model.py": {ParameterChoice: &tritonpb.ModelRepositoryParameter_BytesParam{BytesParam: []byte("x")}},
	}}
	_, err = client.Stub.RepositoryModelLoad(t.Context(), order)
	require.NoError(t, err)
	serves := func() []string {
		d.Look(t.Context())
		states, err := d.States(t.Context())
		require.NoError(t, err)
		return names(states[0])
	}
	require.Equal(t, []string{"a"}, serves(), "the server lists it not, and conch knows nothing of it")
	d.Ordered("A", "fresh", true)
	require.Equal(t, []string{"a", "fresh"}, serves())
	d.endpoints[0].down("a health probe came late")
	require.Equal(t, []string{"a", "fresh"}, serves(), "the server has it still")
	require.NoError(t, client.Unload(t.Context(), "fresh"))
	require.Equal(t, []string{"a"}, serves())
	d.Ordered("A", "fresh", false)
	require.Equal(t, []string{"a"}, serves())
}

// An address besides gRPC's at which nothing answers is reported, once: otherwise a
// client would be the first to notice.
func TestAttachTellsOfAWrongAddress(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a")
	const nobody = "127.0.0.1:1"
	for _, c := range []struct {
		http, metrics string
		shut          []string
	}{{nobody, o.at.Metrics, []string{"HTTP"}}, {o.at.HTTP, nobody, []string{"metrics"}}, {"", "", nil}, {o.at.HTTP, o.at.Metrics, nil}} {
		wrong := *o
		wrong.at.HTTP, wrong.at.Metrics = c.http, c.metrics
		d, changes := attachTo(t, watchful, &wrong)
		<-changes // it serves a model
		if c.shut != nil {
			require.Contains(t, <-changes, "does not answer")
		}
		for range 3 {
			d.Look(t.Context())
		}
		states, err := d.States(t.Context())
		require.NoError(t, err)
		require.Equal(t, c.shut, states[0].Shut)
		require.Empty(t, changes, "once")
		require.True(t, states[0].Up)
	}
}

// A server that goes is dead, and attached to again once it is back; letting go
// of it leaves it as it is.
func TestAttachReportsDeathAndReturn(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a", "b")
	d, _ := attachTo(t, watchful, o)
	_, err := d.States(t.Context())
	require.NoError(t, err)
	s := attachPartition(t, d, "A")
	require.NoError(t, o.server.Close())
	<-s.Done()
	require.Contains(t, s.Death(), "cannot be reached")
	back := make(chan Server, 1)
	go func() { back <- attachPartition(t, d, "A") }()
	o.start("a")
	s = <-back
	models, err := s.Models(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, models)

	require.ErrorIs(t, s.Kill(t.Context()), ErrForeign)
	require.NoError(t, s.Stop(t.Context()))
	got, err := answer(t.Context(), o.at, "a")
	require.NoError(t, err, "the server goes on without the partition")
	require.EqualValues(t, 7, got)
}

// A server that accepts connections and answers nothing is dead after the
// deadline.
func TestAttachFindsAServerThatHangs(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a")
	gate := newGate(t, o.at.GRPC)
	o.at.GRPC = gate.address
	hasty := watchful
	hasty.Deadline = 3 * time.Second
	d, _ := attachTo(t, hasty, o)
	_, err := d.States(t.Context())
	require.NoError(t, err)
	s := attachPartition(t, d, "A")
	gate.shut()
	<-s.Done()
	require.Contains(t, s.Death(), "hangs: it did not answer a health probe within 3s")
	gate.open()
	attachPartition(t, d, "A")
}

// The delay of batching is taken from models that are wanted, and given back as it was: by
// another driver too, as one in a Pod that replaces another's, which has nothing of the first but what the servers say. Twice is once.
func TestAttachTakesOverAndHandsBack(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a", "b")
	d, _ := attachTo(t, watchful, o)
	before, err := d.States(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 700, before[0].Models[0].Config.GetDynamicBatching().GetMaxQueueDelayMicroseconds())

	only := func(model string) bool { return model == "a" }
	done := d.TakeOver(t.Context(), only)
	require.Equal(t, []Handover{{GPU: "A", Endpoint: o.at.GRPC, Model: "a", Change: "the delay of dynamic_batching taken out"}}, done)
	require.Empty(t, d.TakeOver(t.Context(), only))
	now, err := d.States(t.Context())
	require.NoError(t, err)
	left := now[0].Models[0].Config.GetDynamicBatching()
	require.NotNil(t, left, "callers that do not come through conch are batched")
	require.Zero(t, left.GetMaxQueueDelayMicroseconds())
	require.EqualValues(t, 700, now[0].Models[0].Batching().GetMaxQueueDelayMicroseconds(), "that is its operator's")
	require.True(t, proto.Equal(before[0].Models[0].Config, now[0].Models[0].Original))
	require.Equal(t, len(before[0].Models[0].Config.GetParameters()), len(now[0].Models[0].Config.GetParameters()), "how it is kept is nobody's business")
	require.EqualValues(t, 700, now[0].Models[1].Config.GetDynamicBatching().GetMaxQueueDelayMicroseconds(), "b was not wanted")
	d.Look(t.Context())
	require.Empty(t, d.TakeOver(t.Context(), only), "what the server makes of it is not taken again")

	again, _ := attachTo(t, watchful, o)
	_, err = again.States(t.Context())
	require.NoError(t, err)
	require.Len(t, again.HandBack(t.Context(), true), 1)
	again.Look(t.Context())
	now, err = again.States(t.Context())
	require.NoError(t, err)
	require.Zero(t, now[0].Models[0].Config.GetDynamicBatching().GetMaxQueueDelayMicroseconds(), "a dry run changes nothing")
	done = again.HandBack(t.Context(), false)
	require.Len(t, done, 1)
	require.NoError(t, done[0].Err)
	again.Look(t.Context())
	now, err = again.States(t.Context())
	require.NoError(t, err)
	require.True(t, proto.Equal(before[0].Models[0].Config, now[0].Models[0].Config))
	require.Empty(t, again.HandBack(t.Context(), false))
}

// One conch takes over what another one gives back. Neither has the server load its models again and again.
func TestAttachWhereTwoWantDifferentThings(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a")
	controls, changes := attachTo(t, watchful, o)
	observes, _ := attachTo(t, watchful, o)
	every := func(string) bool { return true }
	took, gave := 0, 0
	round := func() (takes error) {
		for _, d := range []*Attached{controls, observes} {
			_, err := d.States(t.Context())
			require.NoError(t, err)
		}
		controls.Look(t.Context())
		for _, h := range controls.TakeOver(t.Context(), every) {
			if takes = h.Err; h.Err == nil {
				took++
			}
		}
		observes.Look(t.Context())
		for _, h := range observes.HandBack(t.Context(), false) {
			if h.Err == nil {
				gave++
			}
		}
		return takes
	}
	for range 10 {
		_ = round()
	}
	require.Equal(t, []int{1, 1}, []int{took, gave})
	require.ErrorIs(t, round(), errUndone)
	e := controls.endpoints[0]
	earlier := func(by time.Duration) { // a while goes by
		e.mu.Lock()
		defer e.mu.Unlock()
		last := e.turns["a"]
		last.at = last.at.Add(-by)
		e.turns["a"], e.again = last, e.again.Add(-by)
	}
	for len(changes) > 0 {
		<-changes
	}
	earlier(undonePause)
	for !strings.Contains(<-changes, "may be changed again") {
	}
	require.NoError(t, round())
	require.Equal(t, []int{2, 1}, []int{took, gave}, "whoever gives back pauses, too")
	e.mu.Lock()
	require.Equal(t, 2*undonePause, e.turns["a"].pause)
	e.mu.Unlock()

	require.Len(t, controls.HandBack(t.Context(), false), 1)
	require.NoError(t, controls.TakeOver(t.Context(), every)[0].Err, "its own change is no one else's")
}

// A server that takes no loads is left alone, and asked once.
func TestAttachLeavesAServerWithoutControl(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlNone)
	d, _ := attachTo(t, watchful, o)
	_, err := d.States(t.Context())
	require.NoError(t, err)
	every := func(string) bool { return true }
	done := d.TakeOver(t.Context(), every)
	require.Len(t, done, 1)
	require.ErrorIs(t, done[0].Err, ErrNoControl)
	require.Empty(t, d.TakeOver(t.Context(), every))
	require.Empty(t, d.HandBack(t.Context(), false))
}

// gate passes bytes on to a server while it is open.
type gate struct {
	address string
	pass    chan struct{} // holds a token while open
}

func newGate(t *testing.T, to string) *gate {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{address: l.Addr().String(), pass: make(chan struct{}, 1)}
	g.open()
	ended := make(chan struct{})
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go g.copy(in, out, ended)
			go g.copy(out, in, ended)
		}
	}()
	t.Cleanup(func() { close(ended); _ = l.Close(); <-accepting })
	return g
}

func (g *gate) shut() { <-g.pass }
func (g *gate) open() { g.pass <- struct{}{} }

func (g *gate) copy(from, to net.Conn, ended chan struct{}) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-g.pass:
		case <-ended:
			return
		}
		_, err = to.Write(buffer[:n])
		g.pass <- struct{}{}
		if err != nil {
			return
		}
	}
}

// A port that is not gRPC's is named for what it is, with the port to give. The ports of this test's server are not beside each other.
func TestAttachToAnotherPort(t *testing.T) {
	t.Parallel()
	o := someone(t, minitriton.ControlExplicit, "a")
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	beside := func(address string, by int) string {
		host, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		return net.JoinHostPort(host, strconv.Itoa(n+by))
	}
	stranger := strings.TrimPrefix(other.URL, "http://")
	for address, want := range map[string]string{
		o.at.HTTP:    o.at.HTTP + " is the HTTP port of a Triton, and conch wants its gRPC port: " + beside(o.at.HTTP, 1) + ", unless its operator has moved it",
		o.at.Metrics: o.at.Metrics + " is the metrics port of a Triton, and conch wants its gRPC port: " + beside(o.at.Metrics, -1) + ", unless its operator has moved it",
		stranger:     stranger + " speaks HTTP and no gRPC, and conch wants the gRPC port of a Triton",
	} {
		d, _ := attachTo(t, watchful, &others{at: Endpoint{GRPC: address}})
		states, err := d.States(t.Context())
		require.NoError(t, err)
		require.False(t, states[0].Up)
		require.Equal(t, want, states[0].Reason)
	}
}

// Servers come and go: one that is there still is not touched, one that is gone goes on for who uses it, and no longer.
func TestAttachSetsOtherServers(t *testing.T) {
	t.Parallel()
	one, two := someone(t, minitriton.ControlExplicit, "a"), someone(t, minitriton.ControlExplicit, "a")
	d, changes := attachTo(t, watchful, one)
	await := func() { // a change may be told in several parts
		select {
		case <-changes:
		case <-time.After(30 * time.Second):
			t.Fatal("no change is told")
		}
	}
	await()
	stays := attachPartition(t, d, "A")
	hash := d.Hash(nil, &policy.GPU{Id: "A"})
	endpoints := []AttachEndpoint{{GPU: "A", Endpoint: one.at}, {GPU: "B", Endpoint: two.at}}
	require.NoError(t, d.Set(endpoints))
	await()
	for i, s := range d.Known() {
		require.Equal(t, endpoints[i], s.AttachEndpoint)
	}
	used := attachPartition(t, d, "B")

	require.NoError(t, d.Set(endpoints[:1]))
	await()
	states, err := d.States(t.Context())
	require.NoError(t, err)
	require.Len(t, states, 1)
	require.True(t, states[0].Up)
	require.NoError(t, two.server.Load(t.Context(), "b"))
	require.Eventually(t, func() bool { return slices.Contains(names(used.(*attachedServer).to.state()), "b") }, 30*time.Second, watchful.Period, "it is looked at still")
	select {
	case <-used.Done():
		t.Fatal("the server answers, and is used")
	case <-stays.Done():
		t.Fatal("it was not touched")
	default:
	}
	require.NoError(t, used.Stop(t.Context()))
	<-used.Done()
	require.Equal(t, "it is none of the servers any more", used.Death())
	_, err = d.Start(t.Context(), Spec{Partition: &policy.Partition{Id: "B", ThreadPercentage: 100}, GPU: &policy.GPU{Id: "B"}})
	require.ErrorContains(t, err, "no endpoint stands for GPU B")

	// The same name at another address is another server.
	require.NoError(t, d.Set([]AttachEndpoint{{GPU: "A", Endpoint: two.at}}))
	await()
	require.NotEqual(t, hash, d.Hash(nil, &policy.GPU{Id: "A"}))
	require.NoError(t, stays.Stop(t.Context()))
	<-stays.Done()
	require.Equal(t, two.at, attachPartition(t, d, "A").Endpoint())
}
