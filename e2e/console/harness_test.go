// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
)

// The test binary is also a minitriton, which conch starts as a server and which can be killed as one, and a policy.
func TestMain(m *testing.M) {
	if rig.AsMinitriton() {
		return
	}
	if policy.Hosted(os.Getenv) {
		policy.Serve(withdrawing{})
		return
	}
	code := m.Run()
	if shared.conch != nil {
		shared.stop()
	}
	os.Exit(code)
}

func bin() string {
	if dir := os.Getenv("CONCH_BIN"); dir != "" {
		return dir
	}
	return "../../bin"
}

// live is a conch under load, which all tests of the screens look at.
type live struct {
	conch *rig.Conch
	stop  func()
}

var (
	shared live
	begun  sync.Once
)

// zooModels are six of the demo's, of different length and SLO.
var zooModels = []string{"ResNet50", "InceptionV3", "MobileNetV2", "VGG16", "DenseNet121", "EfficientNetB0"}

// refused is a model that no server loads.
const refused = "unloadable"

// running is that conch: six models on four emulated GPUs under a load that they hold, and one that does not load, but for pictures to show.
func running(t *testing.T) *rig.Conch {
	t.Helper()
	chromium(t)
	begun.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		repository, err := os.MkdirTemp("", "conch-console-")
		require.NoError(t, err)
		// Times five times as long leave a busy machine's late wake-ups small beside the SLOs.
		models, err := rig.Zoo(zoo.GTX1080Ti, 5, 16, zooModels...)
		require.NoError(t, err)
		require.NoError(t, models.Write(repository))
		if os.Getenv("CONCH_SHOW") == "" {
			require.NoError(t, os.MkdirAll(filepath.Join(repository, refused, "1"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(repository, refused, "config.pbtxt"), []byte(`name: "`+refused+`" backend: "conch" max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
parameters { key: "conch_builtin" value { string_value: "nonsense" } }`), 0o644))
		}
		self, err := os.Executable()
		require.NoError(t, err)
		conch, err := rig.StartConch(ctx, rig.ConchOptions{Bin: bin(), Server: self, Repository: repository, Await: models.Names(), GPUs: 4, GPUType: zoo.GTX1080Ti, Late: "drop"})
		require.NoError(t, err)
		calls, err := loadgen.NewGRPC(conch.Endpoints(), models.Load(), loadgen.Emulated(16))
		require.NoError(t, err)
		done := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = loadgen.Run(ctx, loadgen.Load{Models: models.Load(), Rate: 75, Measure: time.Hour, Until: done, Seed: 1, Patience: time.Second}, calls, clock.System())
		}()
		shared.conch = conch
		shared.stop = func() {
			close(done)
			cancel()
			<-ended
			_ = calls.Close()
			_ = conch.Close()
			_ = os.RemoveAll(repository)
		}
	})
	require.NotNil(t, shared.conch, "conch did not start")
	return shared.conch
}

// ui runs tritonctl ui and gives the link that it prints.
func ui(t *testing.T, admin string, arguments ...string) string {
	t.Helper()
	link, _ := startUI(t, admin, arguments...)
	return link
}

// startUI is ui that can be stopped before the test ends.
func startUI(t *testing.T, admin string, arguments ...string) (link string, stop func()) {
	t.Helper()
	ctl := exec.Command(filepath.Join(bin(), "tritonctl"), append([]string{"--admin", admin, "ui"}, arguments...)...)
	var stderr strings.Builder
	ctl.Stderr = &stderr
	out, err := ctl.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, ctl.Start())
	stop = sync.OnceFunc(func() {
		_ = ctl.Process.Signal(syscall.SIGINT)
		_ = ctl.Wait()
	})
	t.Cleanup(stop)
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "tritonctl ui printed no link: %s", &stderr)
	return lines.Text(), stop
}
