// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
)

func TestAPortThatWasTakenIsReplaced(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		stranger := w.start() // answers as ready as ours would
		var taken ports
		for port, address := range map[*int]string{&taken.grpc: stranger.Endpoint().GRPC, &taken.http: stranger.Endpoint().HTTP, &taken.metrics: stranger.Endpoint().Metrics} {
			_, text, err := net.SplitHostPort(address)
			require.NoError(t, err)
			*port, err = strconv.Atoi(text)
			require.NoError(t, err)
		}
		log, err := openLog(filepath.Join(w.o.Dir, "other.log"))
		require.NoError(t, err)
		l := &life{driver: w.driver, spec: w.spec(), log: log, last: taken}
		s, err := l.begin(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, stranger.Endpoint(), s.endpoint())
		require.NoError(t, s.kill())
		require.NoError(t, log.Close())
		require.NoError(t, stranger.Stop(t.Context()))
	})
}

func TestASlowStartIsWaitedForUpToItsLimit(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1", "FAKE_START_DELAY": "400ms"}, nil)
	p := w.start()
	require.NoError(t, p.Stop(t.Context()))

	w = newWorld(t, self, map[string]string{"FAKE_TRITON": "1", "FAKE_START_DELAY": "1m"}, func(o *ProcessOptions) { o.StartTimeout = 200 * time.Millisecond })
	_, err = w.driver.Start(t.Context(), w.spec())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestAServerThatKeepsDyingIsTriedLessAndLess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cursed := filepath.Join(t.TempDir(), "cursed")
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1", "FAKE_DIES_WHILE": cursed}, nil)
	w.model("m", "pass")
	p := w.start()
	require.NoError(t, p.Load(t.Context(), "m"))
	require.NoError(t, os.WriteFile(cursed, nil, 0o644))
	require.NoError(t, syscall.Kill(p.pid(), syscall.SIGKILL))
	w.await("several tries", func(e []Event) bool { return len(e) >= 4 })
	for i, e := range w.seen() {
		require.False(t, e.Up)
		require.Equal(t, i, e.Restarts)
		if i > 0 {
			require.Contains(t, e.Reason, "out of luck", "the log's last error is the reason")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Load(ctx, "m"), ErrDown)
	require.NoError(t, os.Remove(cursed))
	w.await("up at last", func(e []Event) bool { return e[len(e)-1].Up })
	require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))

	require.NoError(t, os.WriteFile(cursed, nil, 0o644))
	require.NoError(t, syscall.Kill(p.pid(), syscall.SIGKILL))
	w.await("down again", func(e []Event) bool { return !e[len(e)-1].Up })
	require.NoError(t, p.Stop(t.Context()), "a stop does not wait for a server to come back")
}

func TestAModelThatWillNotLoadAgainIsMissingAndTheOthersServe(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		w.model("n", "pass")
		p := w.start()
		require.NoError(t, p.Load(t.Context(), "m"))
		require.NoError(t, p.Load(t.Context(), "n"))
		w.model("n", `raise ValueError("no more")`)
		require.NoError(t, syscall.Kill(p.pid(), syscall.SIGKILL))
		w.await("up", func(e []Event) bool { return len(e) > 0 && e[len(e)-1].Up })
		events := w.seen()
		require.Equal(t, []string{"n"}, events[len(events)-1].Missing)
		spoilt := 0 // a real server on a busy machine may fail to come back for other reasons, too
		for _, e := range events {
			if strings.Contains(e.Reason, `load model "n" again`) {
				spoilt++
			}
		}
		require.Equal(t, maxReviveLoads-1, spoilt, "the last of its failures is reported with the server that is up: %+v", events)
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))
		require.NoError(t, p.Stop(t.Context()))
	})
}

func TestAStopThatIsIgnoredEndsInAKillOfEverything(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1", "FAKE_IGNORES_TERM": "1", "FAKE_STUB": "1"}, func(o *ProcessOptions) { o.StopTimeout = 100 * time.Millisecond })
	p := w.start()
	group := p.pid()
	require.ErrorContains(t, p.Stop(t.Context()), "did not end within")
	require.False(t, groupRuns(group), "the stub is gone too")
	left, err := filepath.Glob(filepath.Join(sharedMemoryDir, w.driver.owner+"*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// Triton does not notice that a model's python process died: it answers errors
// and never finishes an unload.
func TestADeadStubNeitherHoldsUpAStopNorOutlivesARestart(t *testing.T) {
	t.Parallel()
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" {
		t.Skip("CONCH_TRITONSERVER names no tritonserver")
	}
	w := newWorld(t, server, map[string]string{}, func(o *ProcessOptions) { o.DrainTimeout = 500 * time.Millisecond })
	w.model("m", "pass")
	p := w.start()
	require.NoError(t, p.Load(t.Context(), "m"))
	killStubs := func() {
		killed := 0
		for _, pid := range pids() {
			name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
			group, grouping := syscall.Getpgid(pid)
			if err == nil && grouping == nil && group == p.pid() && strings.HasPrefix(string(name), "triton_python_b") {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				killed++
			}
		}
		require.Equal(t, 1, killed)
	}
	killStubs()
	require.ErrorContains(t, infer(t.Context(), p.Endpoint(), "m"), "is not healthy")
	require.NoError(t, p.Restart("its stub died"))
	w.await("back", func(e []Event) bool { return len(e) == 2 && e[1].Up })
	require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))
	killStubs()
	require.ErrorContains(t, p.Stop(context.Background()), "killed", "the unload never ends")
}

func TestStubsAndSharedMemoryOfAKilledServerGo(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1", "FAKE_STUB": "1"}, nil)
	p := w.start()
	group := p.pid()
	require.NoError(t, syscall.Kill(group, syscall.SIGKILL))
	w.await("up again", func(e []Event) bool { return len(e) == 2 && e[1].Up })
	require.False(t, groupRuns(group))
	regions, err := filepath.Glob(filepath.Join(sharedMemoryDir, w.driver.owner+"*"))
	require.NoError(t, err)
	require.Len(t, regions, 1, "only the new life's")
	require.NoError(t, p.Stop(t.Context()))
}

// A goroutine that ends while locked takes its thread with it, and the thread
// its children, if they were started there.
func TestAServerOutlivesTheThreadThatAskedForIt(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1"}, nil)
	started := make(chan *supervised)
	go func() {
		runtime.LockOSThread()
		started <- w.start()
	}()
	p := <-started
	time.Sleep(100 * time.Millisecond)
	require.Empty(t, w.seen())
	require.NoError(t, p.Stop(t.Context()))
}

// fakeConch starts a server, says so, and waits to be killed.
func fakeConch() int {
	d, err := NewProcesses(ProcessOptions{Server: os.Getenv("FAKE_CONCH"), Dir: os.Getenv("FAKE_DIR"), Environment: map[string]string{"FAKE_CONCH": "", "FAKE_TRITON": os.Getenv("FAKE_IS")}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	p, err := d.Start(context.Background(), Spec{Partition: &policy.Partition{Id: "p"}, GPU: &policy.GPU{Emulated: true}, RepositoryDir: os.Getenv("FAKE_DIR")})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(p.(*supervised).pid())
	select {}
}

func TestServersDieWithConch(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		self, err := os.Executable()
		require.NoError(t, err)
		conch := exec.Command(self)
		conch.Env = append(os.Environ(), "FAKE_CONCH="+server, "FAKE_DIR="+t.TempDir(), "FAKE_IS="+env["FAKE_TRITON"])
		output, err := conch.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, conch.Start())
		line, err := bufio.NewReader(output).ReadString('\n')
		require.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		require.NoError(t, err, line)
		require.NoError(t, conch.Process.Kill())
		_ = conch.Wait() // killed on purpose
		require.Eventually(t, func() bool { return !groupRuns(pid) }, 30*time.Second, 5*time.Millisecond)
	})
}

func TestWhatAnEarlierConchLeftIsRemoved(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	first, err := NewProcesses(ProcessOptions{Server: self, Dir: dir})
	require.NoError(t, err)
	require.NoError(t, first.Close())
	orphan := exec.Command("sleep", "1000")
	orphan.Env = []string{"CONCH_OWNER=" + first.owner}
	require.NoError(t, orphan.Start())
	t.Cleanup(func() { _ = orphan.Process.Kill() })
	// Start returns while the kernel is still setting the new program up.
	require.Eventually(t, func() bool {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", orphan.Process.Pid))
		return err == nil && strings.Contains(string(environment), first.owner)
	}, 30*time.Second, time.Millisecond)
	region := filepath.Join(sharedMemoryDir, first.owner+"-7_1")
	require.NoError(t, os.WriteFile(region, nil, 0o600))
	second, err := NewProcesses(ProcessOptions{Server: self, Dir: dir})
	require.NoError(t, err)
	require.ErrorContains(t, orphan.Wait(), "killed")
	require.NoFileExists(t, region)
	require.NoError(t, second.Close())
	_, err = second.Start(t.Context(), Spec{})
	require.ErrorIs(t, err, ErrStopped)
}
