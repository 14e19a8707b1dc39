// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// ProcessOptions of NewProcesses.
type ProcessOptions struct {
	// Server is the path of tritonserver, or of a script that execs it.
	Server string
	// Shim is the command that runs a shim, to which a directory is added; empty
	// means this program's own subcommand.
	Shim []string
	// BackendDir is --backend-directory. Empty: the directory "backends" beside
	// the server's own, where there is one, else whatever the server finds.
	BackendDir string
	// Credentials are how the servers' gRPC is reached; nil means in the clear.
	Credentials credentials.TransportCredentials
	// Arguments are added at the end of the server's command line, where they win.
	Arguments []string
	// Base is the environment that servers inherit; nil means this process's own.
	// Environment is added to it.
	Base        []string
	Environment map[string]string
	// Dir holds the servers' sockets and logs, and the state that emulated GPUs
	// share. One driver at a time works in it.
	Dir string
	// Stretch multiplies emulated times; 0 means 1.
	Stretch float64
	// MPS is the daemon of this machine, see mps.Detect.
	MPS mps.Daemon
	// StartTimeout bounds a start (0 means 30s), DrainTimeout the requests that a
	// server that stops has accepted (30s), StopTimeout what it may take to end after
	// them (10s), and OrphanGrace how long servers go on without a conch (5m).
	StartTimeout, DrainTimeout, StopTimeout, OrphanGrace time.Duration
	// ModelGone is how long a load may go on after the python process of its model
	// has gone (0 means 20s); Triton may wait for it for ever.
	ModelGone time.Duration
	// LogBytes is when a server's log is moved aside (0 means 16 MiB), LogFiles how
	// many are kept of a server (2).
	LogBytes int64
	LogFiles int
	Logger   *slog.Logger
}

// Processes runs one tritonserver for every partition. Each is a process group
// of its own under a shim, outlives conch for OrphanGrace, and leaves no shared
// memory behind.
type Processes struct {
	o     ProcessOptions
	owner string
	// run has a directory for every shim, with the server's sockets.
	run string
	// cleaning removes what is left of servers that are gone.
	cleaning sync.WaitGroup
	// logs are those of servers that are there, or are being started.
	mu   sync.Mutex
	logs map[string]bool
}

// NewProcesses makes the driver "process". Find has to be called before Start.
func NewProcesses(o ProcessOptions) (*Processes, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Base == nil {
		o.Base = os.Environ()
	}
	o.StartTimeout = cmp.Or(o.StartTimeout, 30*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.StopTimeout = cmp.Or(o.StopTimeout, 10*time.Second)
	o.OrphanGrace = cmp.Or(o.OrphanGrace, 5*time.Minute)
	o.ModelGone = cmp.Or(o.ModelGone, 20*time.Second)
	o.LogBytes = cmp.Or(o.LogBytes, 16<<20)
	o.LogFiles = cmp.Or(o.LogFiles, 2)
	var err error
	if o.Server, err = FindServer(o.Server); err != nil {
		return nil, err
	}
	if len(o.Shim) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("process driver: where conch itself lies: %w", err)
		}
		o.Shim = []string{self, "shim"}
	}
	if o.BackendDir == "" {
		o.BackendDir = siblingBackends(o.Server)
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	for _, sub := range []string{"logs", "emulation"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("process driver: %w", err)
		}
	}
	sum := sha256.Sum256([]byte(o.Dir))
	d := &Processes{o: o, owner: "conch-" + hex.EncodeToString(sum[:5]), logs: map[string]bool{}}
	if d.run, err = d.socketRoot(); err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	return d, nil
}

// longestSocket is how long the path of a Unix socket may be on Linux, less the
// byte that ends it.
const longestSocket = 107

// socketRoot is a directory for sockets that no other user may enter. The state
// directory's path may be too long for a socket; then it is a directory of the
// owner's name among the temporary files, if that belongs to this user.
func (d *Processes) socketRoot() (string, error) {
	root := filepath.Join(d.o.Dir, "run")
	if len(root)+len("/")+serverNameLength+len("/g:1") > longestSocket {
		root = filepath.Join(os.TempDir(), d.owner)
	}
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(root)
	if err != nil {
		return "", err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ownedByUs(info) {
		return "", fmt.Errorf("%s has to be a directory that only this user may enter: remove it", root)
	}
	return root, nil
}

// FindServer is the path of tritonserver, which is named by a path or by a name that is looked up on PATH.
func FindServer(name string) (string, error) {
	if name == "" {
		return "", errors.New("process driver: no tritonserver is configured; set driver.tritonserver to its path, or use driver kind embedded")
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("process driver: %s is not an executable file", name)
	}
	if err != nil {
		return "", fmt.Errorf("process driver: tritonserver: %w; name its path with driver.tritonserver or --tritonserver, or attach to servers that run with --attach", err)
	}
	return filepath.Abs(path)
}

// siblingBackends is ../backends of the server's real place, if it exists.
func siblingBackends(server string) string {
	place, err := filepath.EvalSymlinks(server)
	if err != nil {
		return ""
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(place)), "backends")
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return ""
	}
	return dir
}

// Repository is empty: every partition gets a directory of its own.
func (d *Processes) Repository(string) string { return "" }

// Lasting is false: the servers end with conch.
func (d *Processes) Lasting() bool { return false }

// serverNameLength is that of newName.
const serverNameLength = 13

// newName is a server's name, unique over restarts.
func newName() string {
	var random [6]byte
	_, _ = rand.Read(random[:]) // it never fails
	return "s" + hex.EncodeToString(random[:])
}

// label is what a shim keeps for the conch that finds it; labelled reads it.

func (d *Processes) label(s Spec, at Endpoint) (map[string]string, error) {
	partition, err := protojson.Marshal(s.Partition)
	if err != nil {
		return nil, err
	}
	gpu := []byte{}
	if s.GPU != nil {
		if gpu, err = protojson.Marshal(s.GPU); err != nil {
			return nil, err
		}
	}
	return map[string]string{
		"owner": d.owner, "hash": s.Hash, "repository": s.RepositoryDir, "partition": string(partition), "gpu": string(gpu),
		"grpc": at.GRPC, "http": at.HTTP, "metrics": at.Metrics,
	}, nil
}

// labelled is the server behind a label.
func labelled(l map[string]string) (Spec, Endpoint, error) {
	s := Spec{Partition: &policy.Partition{}, Hash: l["hash"], RepositoryDir: l["repository"]}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(l["partition"]), s.Partition); err != nil {
		return Spec{}, Endpoint{}, err
	}
	if l["gpu"] != "" {
		s.GPU = &policy.GPU{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(l["gpu"]), s.GPU); err != nil {
			return Spec{}, Endpoint{}, err
		}
	}
	return s, Endpoint{GRPC: l["grpc"], HTTP: l["http"], Metrics: l["metrics"]}, nil
}

// Hash implements Driver: executable, arguments, device, share, and the
// environment but for what conch itself inherits, which varies with the shell that
// starts it.
func (d *Processes) Hash(p *policy.Partition, g *policy.GPU) string {
	s := Spec{Partition: p, GPU: g}
	environment := d.own(s)
	slices.Sort(environment)
	text, err := json.Marshal(struct {
		Server                 string
		Arguments, Environment []string
		Node, Partition        string
		Memory                 uint64
	}{d.o.Server, d.arguments(s, Endpoint{}, ""), environment, p.GetNode(), p.GetId(), p.GetMemoryLimitBytes()})
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Find implements Driver.
func (d *Processes) Find(ctx context.Context) ([]Server, error) {
	handles, clean, err := shim.Find(d.run)
	// Those that were found serve meanwhile.
	d.cleaning.Go(func() {
		if err := clean(); err != nil {
			d.o.Logger.Warn("what an earlier conch left could not be removed altogether", "error", err)
		}
	})
	var all []Server
	errs := []error{err}
	for _, h := range handles {
		s, err := d.found(h)
		if err != nil {
			// It cannot be known what it is for.
			errs = append(errs, err, h.Kill(ctx))
			continue
		}
		all = append(all, s)
	}
	return all, errors.Join(append(errs, d.prune())...)
}

func (d *Processes) found(h *shim.Handle) (*processServer, error) {
	spec, at, err := labelled(h.Label())
	if err != nil {
		return nil, err
	}
	return d.behind(h, spec, at)
}

// behind is the server of a shim. Its connection ends with it.
func (d *Processes) behind(h *shim.Handle, spec Spec, at Endpoint) (*processServer, error) {
	c, err := dial(at.GRPC, d.o.Credentials)
	if err != nil {
		return nil, err
	}
	d.logged(h.Log(), true)
	go func() {
		<-h.Done()
		_ = c.client.Close() // the server has ended
		if !h.LetGo() {
			d.logged(h.Log(), false)
		}
	}()
	return &processServer{calls: c, Handle: h, driver: d, spec: spec, at: at}, nil
}

// portAttempts is how often a start is tried when another process takes the port
// of the metrics between conch's choice and the server's start.
const portAttempts = 3

// Start implements Driver: the server listens on Unix sockets that no other user of
// the machine can reach, except for its metrics.
func (d *Processes) Start(ctx context.Context, spec Spec) (Server, error) {
	spec.Partition = proto.CloneOf(spec.Partition)
	spec.Partition.Instances = nil
	ctx, cancel := context.WithTimeout(ctx, d.o.StartTimeout)
	defer cancel()
	var errs []error
	for range portAttempts {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		s, err := d.start(ctx, spec, port)
		if err == nil {
			return s, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || !portTaken(port) {
			break
		}
	}
	return nil, fmt.Errorf("partition %s: %w", spec.Partition.GetId(), errors.Join(errs...))
}

func (d *Processes) start(ctx context.Context, spec Spec, metricsPort int) (*processServer, error) {
	name := newName()
	dir := filepath.Join(d.run, name)
	at := Endpoint{
		GRPC: "unix:" + filepath.Join(dir, "g:1"), HTTP: "unix:" + filepath.Join(dir, "h"), Metrics: "127.0.0.1:" + strconv.Itoa(metricsPort),
	}
	l, err := d.label(spec, at)
	if err != nil {
		return nil, err
	}
	// A server that ends again and again leaves a log each time.
	log := filepath.Join(d.o.Dir, "logs", fileName(spec.Partition.GetId())+"-"+name+".log")
	d.logged(log, true)
	if err := d.prune(); err != nil {
		d.o.Logger.Warn("logs of servers that are gone could not be removed", "error", err)
	}
	// The server appends a unique id at once: the last dash ends our part of the name.
	sharedMemory := d.owner + "-" + name + "-"
	h, err := shim.Start(ctx, d.o.Shim, dir, shim.Spec{
		Name: name, Label: l, Command: d.o.Server, Args: d.arguments(spec, at, sharedMemory), Env: d.environment(spec), Log: log,
		LogBytes: d.o.LogBytes, LogFiles: d.o.LogFiles, SharedMemory: sharedMemory, OrphanGrace: d.o.OrphanGrace, StopTimeout: d.o.StopTimeout,
	})
	if err != nil {
		d.logged(log, false)
		return nil, err
	}
	s, err := d.behind(h, spec, at)
	if err != nil {
		d.logged(log, false)
		return nil, errors.Join(err, h.Kill(ctx))
	}
	if err := s.ready(ctx, metricsPort); err != nil {
		return nil, errors.Join(err, s.Kill(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Close implements Driver.
func (d *Processes) Close() error {
	d.cleaning.Wait()
	return nil
}

// arguments is the command line of a server. What the operator adds comes last
// and wins.
func (d *Processes) arguments(spec Spec, at Endpoint, sharedMemory string) []string {
	args := []string{
		"--model-repository=" + spec.RepositoryDir,
		"--model-control-mode=explicit",
		// Completing would load a model twice and add dynamic batching.
		"--disable-auto-complete-config",
		// Otherwise one model that fails to load makes the server unready for good.
		"--strict-readiness=false",
		// gRPC adds the port to its path, HTTP does not.
		"--http-address=" + at.HTTP,
		"--grpc-address=" + strings.TrimSuffix(at.GRPC, ":1"), "--grpc-port=1",
		"--metrics-address=127.0.0.1", "--metrics-port=" + strings.TrimPrefix(at.Metrics, "127.0.0.1:"),
		// What a crash leaves in /dev/shm can be found by this name.
		"--backend-config=python,shm-region-prefix-name=" + sharedMemory,
		// gRPC's own five minutes end an idle connection that pings to stay alive.
		"--grpc-http2-min-recv-ping-interval-without-data=5000",
		"--exit-timeout-secs=" + strconv.Itoa(int(max(d.o.StopTimeout, time.Second)/time.Second)),
	}
	if d.o.BackendDir != "" {
		args = append(args, "--backend-directory="+d.o.BackendDir)
	}
	return append(args, d.o.Arguments...)
}

// environment is a server's environment: what it inherits without what only we
// may say, and what is its own.
func (d *Processes) environment(spec Spec) []string {
	var env []string
	for _, e := range d.o.Base {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "CONCH_") || strings.HasPrefix(name, "CUDA_MPS_ACTIVE") || strings.HasPrefix(name, "CUDA_MPS_PINNED") {
			continue
		}
		env = append(env, e)
	}
	return append(env, d.own(spec)...)
}

// own is the part of a server's environment that conch makes: where it is, its
// share, and what the operator adds.
func (d *Processes) own(spec Spec) []string {
	env := append(mps.Of(spec.Partition, spec.GPU, d.o.MPS).Environment,
		"CONCH_PARTITION="+spec.Partition.GetId(),
		"CONCH_GPU="+spec.GPU.GetId(),
		"CONCH_SHARE="+strconv.FormatUint(uint64(spec.Partition.GetThreadPercentage()), 10),
		"CONCH_EMULATION_DIR="+filepath.Join(d.o.Dir, "emulation"),
	)
	switch {
	case spec.Untimed:
		env = append(env, "CONCH_EMULATION_STRETCH=0")
	case d.o.Stretch > 0:
		env = append(env, "CONCH_EMULATION_STRETCH="+strconv.FormatFloat(d.o.Stretch, 'g', -1, 64))
	}
	for name, value := range d.o.Environment {
		env = append(env, name+"="+value)
	}
	return env
}

// fileName makes a partition's id safe as part of a file's name.
func fileName(id string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, id)
}
