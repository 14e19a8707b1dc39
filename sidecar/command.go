// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
	"github.com/conch-serving/conch/sidecar/reaper"
)

// process is what the command line has of the process that it runs in.
type process struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// leave is set before the command's context ends if servers shall go on.
	leave *atomic.Bool
}

// flags are what the command line says over the file.
type flags struct {
	file, repository, state, driver, triton, mode string
	grpc, http, metrics, admin                    string
	logLevel, logFormat                           string
	attach                                        []string
}

func newCommand(p process) *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "conch",
		Short: "Serve Triton models on schedule",
		Long: `conch serves a model repository through Triton's own protocol. It starts the
Triton processes, decides with a scheduling policy which model lies where, and
batches requests as late as their deadlines allow.

Try it without a GPU and without Triton:
  conch --driver embedded --repository DIR

Watch Triton servers that run already, and change nothing of theirs:
  conch --attach localhost:8001`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       build().Version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), p, f)
		},
	}
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	v := build()
	root.SetVersionTemplate(fmt.Sprintf("conch %s (commit %s, %s)\n", v.Version, v.Commit, v.Go))
	root.Flags().StringVarP(&f.file, "config", "c", "", "conch.yaml; docs/configuration.md describes it")
	root.Flags().StringVar(&f.repository, "repository", "", "model repository directory")
	root.Flags().StringVar(&f.state, "state", "", "directory of conch's own state")
	root.Flags().StringVar(&f.driver, "driver", "", "where Triton processes come from: process, embedded or attach")
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
	return root
}

func configCommand(p process) *cobra.Command {
	group := &cobra.Command{Use: "config", Short: "Work with conch.yaml", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	group.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Say everything that is wrong with a configuration",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := config.Load(args[0], nil, environment())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.stdout, "%s is valid: mode %s, driver %s, policy %s\n", args[0], c.Mode, c.Driver.Kind, c.Policy.Name)
			return err
		},
	})
	return group
}

// initCommand is conch as the first process of a container.
func initCommand(p process) *cobra.Command {
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
			log := logger(p.stderr, config.Log{Level: "info", Format: "auto"}).With("part", "init")
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

// shimCommand is how conch starts the parents of its servers.
func shimCommand() *cobra.Command {
	return &cobra.Command{
		Use: "shim DIR", Short: "Keep one tritonserver alive while conch restarts", Hidden: true, Args: cobra.ExactArgs(1),
		Run: func(_ *cobra.Command, args []string) { os.Exit(shim.Main(args[0])) },
	}
}

func environment() config.Environment {
	return config.Environment{UID: os.Getuid(), Getenv: os.Getenv, CheckDiscipline: checkDiscipline}
}

// checkDiscipline says why the queue would refuse a discipline or a drop policy,
// each empty where there is none.
func checkDiscipline(discipline string, parameters map[string]string, dropPolicy string) error {
	if discipline != "" {
		if _, err := queue.NewDiscipline(discipline, parameters); err != nil {
			if why := plan.SimulatedOnly(discipline); why != "" {
				return fmt.Errorf("discipline %q runs in simulations only (tritonctl simulate): %s; there are %s", discipline, why, strings.Join(queue.Names(), ", "))
			}
			return err
		}
	}
	if dropPolicy != "" {
		if _, err := queue.NewDropPolicy(dropPolicy); err != nil {
			return err
		}
	}
	return nil
}

// load reads the configuration; the command line wins over the file.
func (f flags) load() (*config.Config, error) {
	var endpoints []config.Endpoint
	if len(f.attach) > 0 {
		var err error
		if endpoints, err = config.ParseEndpoints(f.attach); err != nil {
			return nil, err
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
	}, environment())
}

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, p process, f flags) error {
	defer runtime.KeepAlive(slack(os.Getenv))
	settings, err := f.load()
	if err != nil {
		return err
	}
	log := logger(p.stderr, settings.Log)
	policies, err := besideThis()
	if err != nil {
		return err
	}
	s, err := newServer(ctx, serverOptions{config: settings, version: build(), policies: policies, launcher: confining(policies), log: log})
	if err != nil {
		return err
	}
	if p.leave != nil {
		s.leave = p.leave
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	reloads := make(chan struct{})
	go func() {
		defer close(reloads)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				s.reload(ctx, f.load)
			}
		}
	}()
	err = s.run(ctx)
	if ctx.Err() == nil {
		// The server ended by itself; ctx will not end for the other goroutine.
		return err
	}
	<-reloads
	return err
}

// confining is how conch, at self, launches policies; nil where it cannot confine them.
func confining(self string) []string {
	if runtime.GOOS != "linux" {
		return nil
	}
	return []string{self, launchWord}
}

// besideThis is where conch-policies is: next to conch.
func besideThis() (string, error) {
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

// build is what the compiler wrote into the program.
func build() api.Version {
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
