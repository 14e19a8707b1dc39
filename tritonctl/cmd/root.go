// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package cmd is tritonctl's command tree. A command's package is its path:
// cmd/plan/diff is `tritonctl plan diff`.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/usage"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/cmd/advise"
	"github.com/conch-serving/conch/tritonctl/cmd/calibrate"
	"github.com/conch-serving/conch/tritonctl/cmd/estimate"
	"github.com/conch-serving/conch/tritonctl/cmd/events"
	"github.com/conch-serving/conch/tritonctl/cmd/gpu"
	"github.com/conch-serving/conch/tritonctl/cmd/logs"
	"github.com/conch-serving/conch/tritonctl/cmd/merge"
	"github.com/conch-serving/conch/tritonctl/cmd/model"
	"github.com/conch-serving/conch/tritonctl/cmd/node"
	"github.com/conch-serving/conch/tritonctl/cmd/partition"
	"github.com/conch-serving/conch/tritonctl/cmd/plan"
	"github.com/conch-serving/conch/tritonctl/cmd/policy"
	"github.com/conch-serving/conch/tritonctl/cmd/record"
	"github.com/conch-serving/conch/tritonctl/cmd/release"
	"github.com/conch-serving/conch/tritonctl/cmd/replay"
	"github.com/conch-serving/conch/tritonctl/cmd/repo"
	"github.com/conch-serving/conch/tritonctl/cmd/simulate"
	"github.com/conch-serving/conch/tritonctl/cmd/top"
	"github.com/conch-serving/conch/tritonctl/cmd/ui"
	"github.com/conch-serving/conch/tritonctl/cmd/version"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Exit codes are part of the interface: scripts branch on them.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitNotFound    = 4
	ExitConflict    = 5
	ExitRefused     = 6
)

// New builds the command tree.
func New(f *factory.Factory) *cobra.Command {
	if f.Now == nil {
		f.Now = time.Now
	}
	root := &cobra.Command{
		Use:   "tritonctl",
		Short: "Show and steer a running conch",
		Long: `tritonctl talks to the admin API of a running conch: --admin, $CONCH_ADMIN, the
unix socket /run/conch/admin.sock of a conch that root runs, or that of this
user's conch under $XDG_RUNTIME_DIR.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no conch answers, 4 not found,
5 somebody else changed it first, 6 refused (an invalid plan, say).`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := output.Check(f.Format); err != nil {
				return fmt.Errorf("%w: %w", factory.ErrUsage, err)
			}
			if f.Timeout < 0 {
				return fmt.Errorf("%w: --timeout %v is negative", factory.ErrUsage, f.Timeout)
			}
			if err := usage.Flags(c, factory.ErrUsage); err != nil {
				return err
			}
			c.SetContext(f.Bound(c.Context()))
			return nil
		},
	}
	root.PersistentFlags().StringVar(&f.Address, "admin", "", "admin address, unix:///path or https://host:port (default $CONCH_ADMIN, else "+client.DefaultAddress+", else this user's)")
	root.PersistentFlags().StringVar(&f.TokenFile, "token-file", "", "file of the token for an admin address over TCP (default $"+factory.TokenVariable+")")
	root.PersistentFlags().StringVar(&f.AuthorityFile, "ca-file", "", "file of the authorities of its certificate (default $"+factory.AuthorityVariable+", else the system's)")
	root.PersistentFlags().StringVarP(&f.Format, "output", "o", "table", "output format: "+strings.Join(output.Formats(), ", "))
	root.PersistentFlags().DurationVar(&f.Timeout, "timeout", 0, "give up after this time, such as 30s (default: wait)")
	root.PersistentFlags().BoolVarP(&f.Yes, "yes", "y", false, "confirm beforehand what disturbs requests or changes what serves")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.Formats(), cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(repo.New(f), model.New(f), partition.New(f), plan.New(f), policy.New(f), gpu.New(f), node.New(f), release.New(f), events.New(f), logs.New(f), version.New(f),
		simulate.New(f), record.New(f), replay.New(f), top.New(f), ui.New(f), advise.New(f), estimate.New(f), calibrate.New(f), merge.New(f))
	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.Err)
	usage.Mark(root, factory.ErrUsage)
	return root
}

// Run executes args and gives the exit code.
func Run(ctx context.Context, f *factory.Factory, args []string) int {
	root := New(f)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	f.Done()
	if err == nil {
		return ExitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(f.Err, "tritonctl: interrupted; there is no result")
		return ExitFailed
	}
	if f.Timeout > 0 && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within --timeout %v; what was ordered may still be done, tritonctl events says so", f.Timeout)
	}
	var answered *api.Error
	if errors.As(err, &answered) {
		for _, v := range answered.Violations {
			fmt.Fprintln(f.Err, output.CleanLines(fmt.Sprintf("  %s %s: %s", v.Code, v.Subject, v.Text)))
		}
	}
	fmt.Fprintln(f.Err, output.CleanLines(fmt.Sprintf("tritonctl: %v", err)))
	return exitCode(err)
}

func exitCode(err error) int {
	switch {
	case errors.Is(err, factory.ErrUsage):
		return ExitUsage
	case errors.Is(err, client.ErrUnreachable):
		return ExitUnreachable
	}
	switch api.CodeOf(err) {
	case api.CodeInvalid:
		return ExitUsage
	case api.CodeNotFound:
		return ExitNotFound
	case api.CodeConflict:
		return ExitConflict
	case api.CodeRefused, api.CodeUnauthenticated:
		return ExitRefused
	default:
		return ExitFailed
	}
}
