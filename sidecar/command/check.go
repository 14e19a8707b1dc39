// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/command/check"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// errWarnings ends a strict check that has warned.
var errWarnings = errors.New("there are warnings, and the check is strict")

func configCommand(p Process) *cobra.Command {
	group := &cobra.Command{Use: "config", Short: "Work with conch.yaml"}
	strict := false
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Say everything that is wrong with a configuration",
		Long: `check says what conch would not start with, and ends with status 1 then. It warns of
what depends on the machine that it runs on, or costs a model its settings or its
place: a repository, a tritonserver, a certificate or a policy that is not there, a model that the
repository does not have, a placement on a GPU that there is not. It starts the policy
to ask it, and nothing else.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkFile(cmd.Context(), p, args[0], strict)
		},
	}
	c.Flags().BoolVar(&strict, "strict", false, "end with status 1 where there are warnings")
	group.AddCommand(c)
	return group
}

func checkFile(ctx context.Context, p Process, file string, strict bool) error {
	host, err := asking()
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }() // it keeps no policy running
	env := Environment()
	env.CheckPolicy = func(name string) error { return checkPolicy(ctx, host, name) }
	c, err := config.Load(file, nil, env)
	if err != nil {
		return err
	}
	found := check.Machine(ctx, c, func(ctx context.Context, ref policyhost.Ref, s *policy.Snapshot) (*policy.Plan, error) {
		s.PlanningBudgetUs = c.Policy.Deadline.Std().Microseconds()
		return host.Try(ctx, ref, s)
	})
	if len(found.Problems) > 0 {
		return &config.InvalidError{File: file, Problems: found.Problems}
	}
	for _, w := range found.Warnings {
		fmt.Fprintf(p.Stderr, "warning: %s\n", w)
	}
	for _, note := range found.Notes {
		fmt.Fprintf(p.Stderr, "policy %s: %s\n", c.Policy.Name, note)
	}
	if strict && len(found.Warnings) > 0 {
		return errWarnings
	}
	_, err = fmt.Fprintf(p.Stdout, "%s is valid: mode %s, driver %s, policy %s\n", file, c.Mode, c.Driver.Kind, c.Policy.Name)
	return err
}

// asking makes a host to ask policies with, confined as those that serve.
func asking() (*policyhost.Host, error) {
	self, err := executable()
	if err != nil {
		return nil, err
	}
	limits := confine.Default()
	limits.User = confine.Nobody
	return policyhost.New(policyhost.Options{Builtins: policyhost.Beside(self), Launcher: confining(self), Limits: limits}), nil
}

// checkPolicy says that conch-policies, beside this program, has no policy of a name. Where it cannot be asked there is no saying.
func checkPolicy(ctx context.Context, host *policyhost.Host, name string) error {
	known, err := host.List(ctx)
	if err != nil {
		return nil //nolint:nilerr // to ask the policy for a plan fails for the same reason, which is a warning
	}
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = k.Name
	}
	if !slices.Contains(names, name) {
		return fmt.Errorf("there is no policy %q; there are %s. One of your own needs policy.executable", name, strings.Join(names, ", "))
	}
	return nil
}
