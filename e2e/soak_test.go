// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// soak is a conch under random load, orders and faults.
type soak struct {
	t          *testing.T
	random     *rand.Rand
	c          *rig.Conch
	a          *client.Client
	models     rig.Models
	repository string
	load       *steady
	wanted     served
	present    layout
	done       map[string]int
	deaths     map[string]deaths // by specification of the server
}

// deaths of a server, one soon after the other.
type deaths struct {
	row  int
	last time.Time
}

const (
	// deathsInARow are as many as a server may die before Conch waits so long to start it again that requests, which wait for 30 seconds,
	// may give up.
	deathsInARow = 5
	// lasting is how long a server lives that has not failed, and forgotten when one that died in such a row has surely lived as long since.
	lasting, forgotten = 31 * time.Second, time.Minute
)

// TestSoak does everything that the other tests of reconcile do, in random order, for as long as CONCH_SOAK says (`make soak`). Nothing is lost
// but what a killed model process was about to answer; observed equals desired after every step; memory and descriptors of conch are flat.
// CONCH_SEED repeats a soak's orders and faults. Its twin in virtual time, which every push runs, is TestCrashes of sidecar/apply.
func TestSoak(t *testing.T) {
	text := os.Getenv("CONCH_SOAK")
	if text == "" {
		t.Skip("CONCH_SOAK says for how long: `make soak`")
	}
	length, err := time.ParseDuration(text)
	require.NoError(t, err)
	seed := uint64(rounds(t, "CONCH_SEED", int(time.Now().Unix())))
	t.Logf("CONCH_SEED=%d", seed)
	s := &soak{t: t, random: rand.New(rand.NewPCG(seed, 1)), models: small(3), repository: t.TempDir(), done: map[string]int{}, deaths: map[string]deaths{}}
	require.NoError(t, s.models.Write(s.repository))
	home, err := parseLayout("gpu0.0:50=small-0+small-1 gpu0.1:50=small-2 gpu1.0:100=small-0+small-1+small-2")
	require.NoError(t, err)
	s.present = home.sorted()
	s.c = serve(t, rig.ConchOptions{Repository: s.repository, Await: s.models.Names(), GPUs: 2, Settings: layoutSettings(t, home)})
	s.a = admin(t, s.c)
	s.wanted.models = s.models.Names()
	s.wanted.byAll(home)
	s.load = ask(t, s.c.GRPC, 4, s.wanted.names)

	end := time.Now().Add(length)
	// Conch itself dies in the first half only: what it takes is compared over the second.
	for time.Until(end) > length/2 {
		s.step(s.conchIsKilled, s.conchLeaves, s.plan, s.files, s.policy, s.serverDies, s.shimDies, s.stubDies, s.unloaded)
	}
	s.order(home)
	first := s.usage()
	for time.Now().Before(end) {
		s.step(s.plan, s.files, s.policy, s.serverDies, s.shimDies, s.stubDies, s.unloaded)
	}
	s.order(home)
	last := s.usage()
	s.load.close(t)
	t.Logf("%v: %d requests answered; %v; conch before and after its second half: %v, %v", length, s.load.answered.Load(), s.done, first, last)
	require.LessOrEqual(t, last.descriptors, first.descriptors+first.descriptors/10+8)
	require.LessOrEqual(t, last.resident, first.resident+first.resident/4+(16<<20))
}

// step does one thing, waits until everything is as desired, and requires that nothing was lost.
func (s *soak) step(things ...func() string) {
	s.t.Helper()
	name := things[s.random.IntN(len(things))]()
	s.done[name]++
	requireLayout(s.t, s.c, s.a, s.present)
	// A request that is lost a second time may be what servers die of, and fails: nothing is killed while one waits that was lost.
	asked := s.load.asked()
	require.Eventually(s.t, func() bool { return s.load.allAsked(asked, 3) || s.load.anyLost() }, time.Minute, time.Millisecond)
	if name == "a model's process killed" {
		s.load.forgive(s.t, codes.Internal, "Stub process")
	}
	s.load.requireNoneLost(s.t)
}

func (s *soak) order(l layout) {
	s.t.Helper()
	s.wanted.byAll(s.present, l)
	r, err := order(s.t, s.a, l)
	require.NoError(s.t, err)
	require.Equal(s.t, l.sorted().String(), layoutOf(s.t, r.Plan).String())
	requireLayout(s.t, s.c, s.a, l)
	s.present = l
	s.wanted.byAll(l)
}

func (s *soak) plan() string {
	s.order(randomLayout(s.random, 2, s.models.Names()))
	return "plans"
}

func (s *soak) files() string {
	otherFiles(s.t, s.repository, s.models.Names()[s.random.IntN(3)], 4+s.random.IntN(5))
	_, err := s.a.Import(s.t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
	require.NoError(s.t, err)
	s.order(s.present)
	return "other files"
}

func (s *soak) policy() string {
	_, err := s.a.UsePolicy(s.t.Context(), api.UsePolicyRequest{Name: "static"})
	require.NoError(s.t, err)
	return "policies"
}

// victim is a running server, which is to die, and one of the models on it.
func (s *soak) victim() (running, string) {
	s.t.Helper()
	servers := look(s.t, s.c).servers
	key := slices.Sorted(maps.Keys(servers))[s.random.IntN(len(servers))]
	v, d := servers[key], s.deaths[key]
	switch {
	case time.Since(d.last) >= forgotten:
		d.row = 0
	case d.row == deathsInARow:
		time.Sleep(lasting)
		d.row = 0
	}
	s.deaths[key] = deaths{d.row + 1, time.Now()}
	return v, slices.Sorted(maps.Keys(v.stubs))[s.random.IntN(len(v.stubs))]
}

// gone waits until a process has ended.
func (s *soak) gone(pid int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { _, runs := processes(s.t)[pid]; return !runs }, time.Minute, time.Millisecond)
}

func (s *soak) serverDies() string {
	v, _ := s.victim()
	kill(s.t, v.pid)
	s.gone(v.pid)
	return "servers killed"
}

func (s *soak) shimDies() string {
	v, _ := s.victim()
	kill(s.t, shimOf(s.t, v.pid))
	s.gone(v.pid)
	return "shims killed"
}

func (s *soak) stubDies() string {
	v, model := s.victim()
	kill(s.t, v.stubs[model])
	burst(s.t, s.c, model, func() bool { _, runs := processes(s.t)[v.pid]; return !runs })
	return "a model's process killed"
}

// unloaded takes a model off a server where another one has it: requests that find it gone go there.
func (s *soak) unloaded() string {
	for _, cut := range s.present {
		for _, m := range cut.models {
			places := 0
			for _, other := range s.present {
				if slices.Contains(other.models, m) {
					places++
				}
			}
			if places > 1 {
				pid := look(s.t, s.c).servers[cut.process()].stubs[m]
				unloadBehind(s.t, s.a, cut.partition, m)
				s.gone(pid)
				return "models unloaded"
			}
		}
	}
	return "no model in two places"
}

func (s *soak) conchIsKilled() string {
	return s.another("conch killed", func() { kill(s.t, s.c.Pid()) })
}

func (s *soak) conchLeaves() string {
	return s.another("conch left", func() {
		out, err := exec.CommandContext(s.t.Context(), filepath.Join(setting(s.t, "CONCH_BIN"), "conch"), "stop", "--leave", "--config", s.c.Config).CombinedOutput()
		require.NoError(s.t, err, "%s", out)
	})
}

// another ends conch and starts it again: nothing else is touched.
func (s *soak) another(name string, end func()) string {
	s.t.Helper()
	before := look(s.t, s.c)
	s.load.life.Add(1)
	end()
	<-s.c.Exited()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	require.NoError(s.t, s.c.Launch())
	firstAnswer(s.t, s.c, s.wanted.names())
	require.NoError(s.t, ctx.Err())
	s.load.life.Add(1)
	requireUntouched(s.t, before, requireLayout(s.t, s.c, s.a, s.present), s.present)
	return name
}

// usage is what a process takes.
type usage struct {
	descriptors int
	resident    int64 // bytes
}

func (u usage) String() string {
	return fmt.Sprintf("%d descriptors, %d MiB", u.descriptors, u.resident>>20)
}

func (s *soak) usage() usage {
	s.t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(s.c.Pid()))
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	require.NoError(s.t, err)
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	require.NoError(s.t, err)
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kibibytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	require.NoError(s.t, err)
	return usage{len(open), kibibytes << 10}
}
