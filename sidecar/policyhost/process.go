// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	goplugin "github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// stopTime is how long a process that is no longer wanted has to end by itself.
const stopTime = time.Second

// process is one running policy.
type process struct {
	client *plugin.Client
	run    *runner
	policy policy.Policy
	dir    *socketDir
	once   sync.Once
}

// start starts the executable and shakes hands, within o.StartTimeout. Its
// errors are ErrStart and ErrChecksum.
func start(ctx context.Context, exe Executable, o Options, log *slog.Logger) (*process, error) {
	path, err := exec.LookPath(exe.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	file, err := verified(path, exe.SHA256)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	dir, err := newSocketDir(time.Now(), flock)
	if err != nil {
		return nil, fmt.Errorf("%w: a directory for its socket: %w", ErrStart, err)
	}
	run, group, err := o.runner(file, path, dir.path, exe)
	if err != nil {
		dir.remove()
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	config := policy.ClientConfig()
	config.SkipHostEnv = true
	config.StartTimeout = o.StartTimeout
	config.UnixSocketConfig = &plugin.UnixSocketConfig{TempDir: dir.path, Group: group}
	lines := &gate{l: log, now: o.Now}
	config.Logger = pluginLogger(lines)
	config.SyncStdout = &lineLogger{l: lines}
	config.SyncStderr = &lineLogger{l: lines}
	config.GRPCDialOptions = []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxAnswerBytes)),
		// The socket that it names may be another's, which says nothing: go-plugin waits for the connection without a context, and gRPC
		// for 20 s, whatever becomes of the process.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: o.StartTimeout}),
	}
	config.RunnerFunc = func(_ hclog.Logger, spec *exec.Cmd, _ string) (goplugin.Runner, error) {
		run.cmd.Env = append(run.cmd.Env, spec.Env...)
		return run, nil
	}
	p := &process{client: plugin.NewClient(config), run: run, dir: dir}
	if err := p.shakeHands(ctx, o.StartTimeout); err != nil {
		p.kill()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrStart, path, err)
	}
	return p, nil
}

// verified opens an executable and compares its content with the pin, if it has one.
// What is opened here is what runs, whatever is at the path by then.
func verified(path, pin string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	if pin == "" {
		return file, nil
	}
	want, err := hex.DecodeString(pin)
	if err != nil || len(want) != sha256.Size {
		err = fmt.Errorf("%w: the pin %q of %s is not 64 hexadecimal digits", ErrChecksum, pin, path)
	} else {
		hash := sha256.New()
		if _, err = io.Copy(hash, file); err != nil {
			err = fmt.Errorf("%w: %w", ErrChecksum, err)
		} else if !bytes.Equal(hash.Sum(nil), want) {
			err = fmt.Errorf("%w: %s; see what it is, then pin it with sha256sum", ErrChecksum, path)
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// runner is a process of an executable that is open, confined if there is a launcher,
// and the group that may use its socket where that is not conch's.
func (o Options) runner(file *os.File, path, dir string, exe Executable) (run *runner, group string, err error) {
	env := append(hostEnvironment(), exe.Env...)
	if len(o.Launcher) == 0 {
		run, err = newRunner(path, exe.Args, env)
		return run, "", err
	}
	script := isScript(file)
	limits := o.Limits
	limits.Writable = dir
	if limits.User != 0 && (script || os.Getuid() != 0) {
		limits.User = 0 // an interpreter has to reach what lies beside the script
	}
	if limits.User != 0 {
		if err := os.Chown(dir, limits.User, limits.User); err != nil {
			return nil, "", err
		}
		group = strconv.Itoa(limits.User)
	}
	command, err := confine.Command(o.Launcher, path, script, exe.Args, limits)
	if err != nil {
		return nil, "", err
	}
	if run, err = newRunner(command[0], command[1:], append(env, "TMPDIR="+dir)); err != nil {
		return nil, "", err
	}
	run.cmd.ExtraFiles = []*os.File{file}
	return run, group, nil
}

// isScript reports that a file names its interpreter in its first line.
func isScript(file *os.File) bool {
	var first [2]byte
	_, err := file.ReadAt(first[:], 0)
	return err == nil && string(first[:]) == "#!"
}

func (p *process) shakeHands(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// go-plugin waits without a context in some places; the death of the process
	// ends every such wait.
	shaken := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-ctx.Done():
			p.run.kill()
		case <-shaken:
		}
	})
	defer watch.Wait()
	defer close(shaken)
	protocol, err := p.client.Client()
	if err != nil {
		return err
	}
	raw, err := protocol.Dispense(policy.PluginName)
	if err != nil {
		return err
	}
	client, ok := raw.(policy.Policy)
	if !ok {
		return fmt.Errorf("go-plugin dispensed a %T", raw)
	}
	p.policy = client
	return nil
}

// pid of the process.
func (p *process) pid() int { return int(p.run.pid.Load()) }

// exited reports whether the process is dead.
func (p *process) exited() bool { return p.client.Exited() }

// stop ends a process that is no longer wanted, politely at first.
func (p *process) stop() {
	timer := time.AfterFunc(stopTime, p.run.kill)
	defer timer.Stop()
	p.reap()
}

// kill ends the process at once.
func (p *process) kill() {
	p.run.kill()
	p.reap()
}

func (p *process) reap() {
	p.once.Do(func() {
		p.client.Kill()
		p.dir.remove()
	})
}

// describe asks for the description, within the limit.
func (p *process) describe(ctx context.Context, limit time.Duration) (d *policy.Description, err error) {
	err = p.call(ctx, limit, func(ctx context.Context, _ *clock) (err error) {
		d, err = p.policy.Describe(ctx)
		return err
	})
	if err == nil {
		err = presentable(d)
	}
	return d, err
}

// plan asks for a plan, within the limit. The time in which evaluator works for
// the policy is not the policy's: it does not count there, and has a limit of its
// own, evaluations. A nil evaluator evaluates nothing.
func (p *process) plan(ctx context.Context, s *policy.Snapshot, limit time.Duration, evaluator Evaluator, evaluations time.Duration) (answer *policy.Plan, err error) {
	err = p.call(ctx, limit, func(ctx context.Context, c *clock) (err error) {
		var host policy.Host = policy.NoEvaluation{}
		if evaluator != nil && s.GetEvaluations() > 0 {
			host = &evaluating{evaluator: evaluator, snapshot: s, clock: c, limit: evaluations, left: evaluations}
		}
		answer, err = p.policy.Plan(ctx, s, host)
		return err
	})
	if err == nil && answer.GetSnapshotRevision() != s.GetRevision() {
		err = fmt.Errorf("%w: it answers snapshot %d, asked was %d", ErrGarbage, answer.GetSnapshotRevision(), s.GetRevision())
	}
	return answer, err
}

// call makes one call and says what its failure means. A process that did not
// answer in time or whose connection broke is dead afterwards.
func (p *process) call(ctx context.Context, limit time.Duration, f func(context.Context, *clock) error) error {
	// The call's context ends with ctx and after the limit, but has no deadline:
	// gRPC would pass the deadline to the policy, whose side may then be the first
	// to end the call, and the cause could not be determined.
	limited, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	running := startClock(limit, cancel)
	defer running.stop()
	err := f(limited, running)
	var failed *evaluationError
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && errors.As(err, &failed):
		return fmt.Errorf("%w: %w", ErrEvaluation, failed.err)
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		p.kill()
		return fmt.Errorf("%w: nothing came within %s", ErrDeadline, limit)
	case errors.Is(err, policy.ErrGarbled):
		return fmt.Errorf("%w: %w", ErrGarbage, err)
	}
	state := status.Convert(err)
	says := brief(state.Message())
	switch state.Code() {
	case codes.Unavailable:
		p.kill()
		return fmt.Errorf("%w: %s", ErrCrashed, says)
	case codes.Unimplemented:
		return fmt.Errorf("%w: %s", ErrGarbage, says)
	default:
		return fmt.Errorf("%w: %s", ErrRefused, says)
	}
}

// longest bytes of what a policy says of a failure are kept: it is logged and shown.
const longest = 4096

func brief(text string) string {
	if len(text) > longest {
		return strings.ToValidUTF8(text[:longest], "") + " ..."
	}
	return text
}
