// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollback is `tritonctl plan rollback`.
package rollback

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/apply"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var order api.ApplyRequest
	var o apply.Options
	c := &cobra.Command{
		Use:   "rollback [PLAN]",
		Short: "Go back to an earlier plan, and have it stay",
		Long: `rollback applies a plan of tritonctl plan history again, by its number; without one,
the last that differs from the plan in force. It is a new plan, for the files and
SLOs of now: models that are gone are left out, and models that it does not know have
no place.

The plan is pinned, or the policy would put back what was rolled back:
tritonctl plan unpin lets the policy decide again. --pin=false does not pin it.

To go back to earlier files of models, see tritonctl repo rollback.`,
		Example: `  tritonctl plan rollback --dry-run
  tritonctl plan rollback 7 --reason 'plan 8 was slower'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			order.RollbackLast = len(args) == 0
			if len(args) == 1 {
				n, err := strconv.ParseUint(args[0], 10, 64)
				if err != nil || n == 0 {
					return fmt.Errorf("%w: %q is not the number of a plan; tritonctl plan history shows them", factory.ErrUsage, args[0])
				}
				order.Rollback = n
			}
			return apply.Run(c.Context(), f, order, o)
		},
	}
	c.Flags().BoolVar(&order.Pin, "pin", true, "have the plan stay, until tritonctl plan unpin")
	o.Flags(c)
	c.Flags().StringVar(&order.Reason, "reason", "", "why, for the event log")
	return c
}
