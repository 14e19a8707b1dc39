// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package command is conch's command line: the daemon itself, which the caller
// runs, and the commands beside it. Some of these conch runs as its own children:
// the shim of a server, the launcher of a policy, the evaluator of plans.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/conch-serving/conch/internal/usage"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
	"github.com/conch-serving/conch/sidecar/component/evaluations"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
	"github.com/conch-serving/conch/sidecar/reaper"
)

// Process is what the command line has of the process that it runs in.
type Process struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Serve runs the daemon until ctx ends.
	Serve func(ctx context.Context, d Daemon) error
}

// Daemon is what the command line says of the daemon.
type Daemon struct {
	// Config is what conch.yaml and the flags over it say; Load reads them again.
	Config  *config.Config
	Load    func() (*config.Config, error)
	Version api.Version
	// Program is this executable; the built-in policies lie beside it.
	Program string
	// Launcher confines policies; empty: they are not confined.
	Launcher []string
	Log      *slog.Logger
}

// ErrUsage marks errors of the command line itself: a flag, an argument or a command that there is not.
var ErrUsage = errors.New("usage")

// ExitStatus is the exit status of conch for the error that ended it: 2 where the command line was wrong, as tritonctl has it, else 1.
func ExitStatus(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUsage):
		return 2
	}
	return 1
}

// flags are what the command line says over the file.
type flags struct {
	file, repository, state, driver, triton, mode string
	grpc, http, metrics, admin                    string
	logLevel, logFormat                           string
	attach                                        []string
}

// New makes the command line.
func New(p Process) *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "conch",
		Short: "Serve Triton models on schedule",
		Long: `conch serves a model repository through Triton's own protocol. It starts the
Triton processes, decides with a scheduling policy which model lies where, and
batches requests as late as their deadlines allow.

Try it without a GPU and without Triton, on models that say how long they take
(docs/configuration.md#emulated-models):
  conch --driver embedded --repository DIR

Watch Triton servers that run already, and change nothing of theirs:
  conch --attach localhost:8001`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       Version().Version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), p, f)
		},
	}
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	v := Version()
	root.SetVersionTemplate(fmt.Sprintf("conch %s (commit %s, %s)\n", v.Version, v.Commit, v.Go))
	root.Flags().StringVarP(&f.file, "config", "c", "", "conch.yaml; docs/configuration.md describes it")
	root.Flags().StringVar(&f.repository, "repository", "", "model repository directory")
	root.Flags().StringVar(&f.state, "state", "", "directory of conch's own state")
	root.Flags().StringVar(&f.driver, "driver", "", "where Triton processes come from: process, embedded, attach or kubernetes")
	root.Flags().StringArrayVar(&f.attach, "attach", nil, "servers that others run: host:port of their gRPC, separated by commas, HTTP and metrics on the ports beside; or grpc=host:port,http=host:port,metrics=host:port (repeatable)")
	root.Flags().StringVar(&f.triton, "tritonserver", "", "path of tritonserver")
	root.Flags().StringVar(&f.mode, "mode", "", "observe, advise or control")
	root.Flags().StringVar(&f.grpc, "grpc", "", "address of Triton's gRPC protocol, or off")
	root.Flags().StringVar(&f.http, "http", "", "address of Triton's HTTP protocol, or off")
	root.Flags().StringVar(&f.metrics, "metrics", "", "address of metrics and health, or off")
	root.Flags().StringVar(&f.admin, "admin", "", "address of the admin API: unix:///path, host:port, or off")
	root.Flags().StringVar(&f.logLevel, "log-level", "", "debug, info, warn or error")
	root.Flags().StringVar(&f.logFormat, "log-format", "", "auto, json or text")
	root.AddCommand(configCommand(p), initCommand(p), stopCommand(p, &flags{}), shimCommand(), evaluateCommand(p), launchCommand())
	usage.Mark(root, ErrUsage)
	return root
}

// initCommand is conch as the first process of a container.
func initCommand(p Process) *cobra.Command {
	return &cobra.Command{
		Use:   "init -- FLAGS",
		Short: "Run conch as the first process of a container",
		Long: `conch init starts conch with the flags behind --, hands signals on to it, starts
it again when it crashes, and waits for the processes that others leave behind. It
is the entry point of the container images. It ends when conch ends by itself
within ten seconds (a wrong configuration, say) or is asked to end.`,
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("where conch itself lies: %w", err)
			}
			log := logger(p.Stderr, config.Log{Level: "info", Format: "auto"}).With("part", "init")
			status, err := reaper.Run(reaper.Options{Program: self, Arguments: args, Settled: 10 * time.Second, Pause: time.Second, Log: log})
			if err == nil && status != 0 {
				os.Exit(status) // conch has reported why
			}
			return err
		},
	}
}

// launchCommand is how conch starts policies.
func launchCommand() *cobra.Command {
	return &cobra.Command{
		Use: launchWord, Short: "Become a policy that is confined", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return confine.Main(args) },
	}
}

const launchWord = "launch-policy"

// evaluateCommand is the process that evaluates plans for policies.
func evaluateCommand(p Process) *cobra.Command {
	return &cobra.Command{
		Use: evaluations.Word, Short: "Evaluate plans for the policy host", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return evaluations.Serve(c.Context(), p.Stdin, p.Stdout, func(d *policy.Dispatch) error {
				return CheckDiscipline(d.GetDiscipline(), d.GetParameters(), d.GetDropPolicy())
			})
		},
	}
}

// shimCommand is how conch starts the parents of its servers.
func shimCommand() *cobra.Command {
	return &cobra.Command{
		Use: "shim DIR", Short: "Keep one tritonserver alive while conch restarts", Hidden: true, Args: cobra.ExactArgs(1),
		Run: func(_ *cobra.Command, args []string) { os.Exit(shim.Main(args[0])) },
	}
}

// load reads the configuration; the command line wins over the file.
func (f flags) load() (*config.Config, error) {
	var endpoints []config.Endpoint
	if len(f.attach) > 0 {
		var err error
		if endpoints, err = config.ParseEndpoints(f.attach); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUsage, err)
		}
	}
	return config.Load(f.file, func(c *config.Config) {
		for _, over := range []struct {
			flag string
			into *string
		}{
			{f.repository, &c.Repository}, {f.state, &c.State}, {f.driver, &c.Driver.Kind}, {f.triton, &c.Driver.TritonServer},
			{f.grpc, &c.Listen.GRPC}, {f.http, &c.Listen.HTTP}, {f.metrics, &c.Listen.Metrics}, {f.admin, &c.Listen.Admin},
			{f.logLevel, &c.Log.Level}, {f.logFormat, &c.Log.Format},
		} {
			if over.flag != "" {
				*over.into = over.flag
			}
		}
		if len(endpoints) > 0 {
			c.Driver.Endpoints = endpoints
			if f.driver == "" {
				c.Driver.Kind = config.DriverAttach
			}
		}
		if f.mode != "" {
			c.Mode = config.Mode(f.mode)
		}
	}, Environment())
}

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, p Process, f flags) error {
	defer runtime.KeepAlive(slack(os.Getenv))
	settings, err := f.load()
	if err != nil {
		return err
	}
	self, err := executable()
	if err != nil {
		return err
	}
	return p.Serve(ctx, Daemon{
		Config: settings, Load: f.load, Version: Version(), Program: self, Launcher: confining(self), Log: logger(p.Stderr, settings.Log),
	})
}

// confining is how conch, at self, launches policies; nil where it cannot confine them.
func confining(self string) []string {
	if runtime.GOOS != "linux" {
		return nil
	}
	return []string{self, launchWord}
}

// executable is this program's file.
func executable() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("where conch itself lies: %w", err)
	}
	if target, err := filepath.EvalSymlinks(self); err == nil {
		self = target
	}
	return self, nil
}

// logger writes JSON, or text to a person.
func logger(w io.Writer, l config.Log) *slog.Logger {
	var level slog.Level
	// The configuration is valid: the level is one of slog's names.
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	file, isFile := w.(*os.File)
	if l.Format == "text" || l.Format == "auto" && isFile && term.IsTerminal(int(file.Fd())) {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// Version is what the compiler wrote into the program.
func Version() api.Version {
	v := api.Version{Version: "devel", Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty {
		v.Commit += "+changes"
	}
	return v
}
