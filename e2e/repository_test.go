// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/modelcases"
	"github.com/conch-serving/conch/internal/rig"
	tritonclient "github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// What `tritonctl repo validate` says of a model, a real server has to do with it: refuse it, hang on it, end on it, or load it. With -short
// it is every tenth case, without those that cost a server of their own.
func TestValidateSaysWhatTritonDoes(t *testing.T) {
	t.Parallel()
	var together, alone []modelcases.Case
	for i, c := range modelcases.All() {
		switch {
		case !c.Hangs && !c.Kills && (!testing.Short() || i%10 == 0):
			together = append(together, c)
		case (c.Hangs || c.Kills) && !testing.Short():
			alone = append(alone, c)
		}
	}
	directory := t.TempDir()
	require.NoError(t, modelcases.Write(directory, slices.Concat(modelcases.Helpers(), modelcases.All())...))
	refused := refusedByValidate(t, directory)
	began := time.Now()

	server, client := bare(t, directory)
	for _, c := range together {
		err := client.Load(t.Context(), c.Name)
		if c.Want != "" && status.Code(err) == codes.Unavailable {
			// A warm-up that fails may end this server: it answers a request that is gone.
			t.Logf("%s: the server ended\n%s", c.Name, server.LogTail())
			server, client = bare(t, directory)
		}
		require.Equal(t, refused[c.Name], err != nil, "%s: validate refuses it: %v; the server says: %v", c.Name, refused[c.Name], err)
		require.Equal(t, c.Want != "", err != nil, "%s: %v", c.Name, err)
		if err == nil && !strings.HasPrefix(c.Name, "ensemble") {
			require.NoError(t, client.Unload(t.Context(), c.Name))
		}
	}

	// A load that hangs keeps one of a server's four threads, and one that kills the server ends it for the other models.
	servers := errgroup.Group{}
	servers.SetLimit(4)
	for _, c := range alone {
		require.True(t, refused[c.Name], c.Name)
		servers.Go(func() error { return harms(t.Context(), c, directory, setting(t, "CONCH_TRITONSERVER")) })
	}
	require.NoError(t, servers.Wait())
	t.Logf("a real server was given %d models in %v", len(together)+len(alone), time.Since(began).Round(time.Second))
}

// bare is a real server on a repository, without Conch in front of it.
func bare(t *testing.T, repository string) (*rig.Server, *tritonclient.Client) {
	t.Helper()
	s, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: setting(t, "CONCH_TRITONSERVER"), Repository: repository})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	client, err := tritonclient.Dial(s.GRPC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return s, client
}

// harms fails unless a server hangs on a model, or ends.
func harms(ctx context.Context, c modelcases.Case, repository, program string) (err error) {
	s, err := rig.StartServer(ctx, rig.ServerOptions{Server: program, Repository: repository})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	client, err := tritonclient.Dial(s.GRPC)
	if err != nil {
		return err
	}
	defer client.Close() //nolint:errcheck // it has done its work
	wait := 10 * time.Second
	if c.Kills {
		wait = time.Minute // a server that ends prints where it stood, which takes it seconds
	}
	patience, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	load := client.Load(patience, c.Name)
	hung := status.Code(load) == codes.DeadlineExceeded
	live, dead := client.Live(ctx)
	switch {
	case load == nil:
		return errors.New(c.Name + ": Triton loads it")
	case c.Kills && dead == nil:
		return errors.New(c.Name + ": Triton lives on: " + load.Error())
	case c.Hangs && (!hung || !live):
		return errors.New(c.Name + ": Triton does not hang on it: " + load.Error())
	}
	return nil
}

// refusedByValidate are the models of which `tritonctl repo validate` says that Triton would refuse them.
func refusedByValidate(t *testing.T, directory string) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(setting(t, "CONCH_BIN"), "tritonctl"), "repo", "validate", directory, "-o", "json").Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode(), string(exit.Stderr))
	var problems []struct{ Severity, File string }
	require.NoError(t, json.Unmarshal(out, &problems))
	refused := map[string]bool{}
	for _, p := range problems {
		if p.Severity == "error" {
			name, _, _ := strings.Cut(p.File, "/")
			refused[name] = true
		}
	}
	return refused
}

// A rollback is what serves after a restart of conch, whatever the directory has by then, until it is imported again.
func TestARollbackSurvivesARestart(t *testing.T) {
	t.Parallel()
	directory := repository(t, "emulated")
	path := filepath.Join(directory, "emulated", "config.pbtxt")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	c := serve(t, rig.ConchOptions{Repository: directory, GPUs: 1})
	batch := func() int32 {
		r, err := triton(t, c).ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "emulated"})
		if err != nil {
			return -1
		}
		return r.Config.GetMaxBatchSize()
	}
	serves := func(want int32) {
		require.Eventually(t, func() bool { return batch() == want }, time.Minute, 50*time.Millisecond, "max_batch_size %d", want)
	}
	before := batch()
	edited := regexp.MustCompile(`max_batch_size: \d+`).ReplaceAllString(string(text), "max_batch_size: 3")
	require.NotEqual(t, string(text), edited)
	require.NoError(t, os.WriteFile(path, []byte(edited), 0o644))
	out, code := tritonctl(t, c, "repo", "import")
	require.Zero(t, code, out)
	serves(3)
	out, _ = tritonctl(t, c, "repo", "diff")
	require.Regexp(t, `\+ max_batch_size: 3`, out)
	out, code = tritonctl(t, c, "repo", "rollback", "r1")
	require.Zero(t, code, out)
	serves(before)

	kill(t, c.Pid())
	<-c.Exited()
	require.NoError(t, c.Restart(t.Context()))
	serves(before)
	out, _ = tritonctl(t, c, "repo", "history")
	require.Regexp(t, `(?m)^r3 +held .* rollback to r1`, out)
	out, _ = tritonctl(t, c, "events")
	require.Contains(t, out, "a rollback holds: repository revision r3 serves")
	require.Equal(t, before, batch())

	out, code = tritonctl(t, c, "repo", "import")
	require.Zero(t, code, out)
	serves(3)
}
