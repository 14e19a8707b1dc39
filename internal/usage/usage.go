// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/conch-serving/conch/internal/spelling"
)

// Mark has every error about the arguments and flags of a tree of commands wrap wrong. A group without an argument shows its help; with
// one that is none of its commands, it names those.
func Mark(root *cobra.Command, wrong error) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return fmt.Errorf("%w: %w", wrong, flag(c, err)) })
	mark(root, wrong)
}

// Flags is the check of a command's flags together: those that it requires, and those that exclude each other. Cobra's own comes after
// PersistentPreRun, and its errors wrap nothing.
func Flags(c *cobra.Command, wrong error) error {
	if err := c.ValidateFlagGroups(); err != nil {
		return fmt.Errorf("%w: %w", wrong, err)
	}
	var missing []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations[cobra.BashCompOneRequiredFlag]) > 0 && !f.Changed {
			missing = append(missing, fmt.Sprintf("--%s (%s)", f.Name, f.Usage))
		}
	})
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s needs %s", wrong, c.CommandPath(), strings.Join(missing, " and "))
	}
	return nil
}

func mark(c *cobra.Command, wrong error) {
	check := c.Args
	switch {
	case c.Name() == "help" && c.HasParent():
		help(c, wrong)
		return
	case c.HasSubCommands():
		asks := !c.Runnable()
		if asks {
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) == 0 || asks && args[0] == "help" {
				return nil
			}
			return fmt.Errorf("%w: %w", wrong, noCommand(c, args[0]))
		}
	case check != nil:
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return fmt.Errorf("%w: %w; it is %s", wrong, arguments(c, check, args, err), c.UseLine())
			}
			return nil
		}
	}
	for _, child := range c.Commands() {
		mark(child, wrong)
	}
}

// help has `help` refuse what is no command: cobra's shows the help of the nearest group, and ends with 0.
func help(c *cobra.Command, wrong error) {
	c.Run = nil
	c.RunE = func(c *cobra.Command, args []string) error {
		found, rest, err := c.Root().Find(args)
		if err == nil && len(rest) == 0 {
			found.InitDefaultHelpFlag()
			return found.Help()
		}
		if len(rest) > 0 {
			err = noCommand(found, rest[0])
		}
		return fmt.Errorf("%w: %w", wrong, err)
	}
}

// noCommand names the commands of a group that has none of that name.
func noCommand(c *cobra.Command, name string) error {
	var names []string
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no command %q", c.CommandPath(), name)
	}
	return fmt.Errorf("%s has no command %q%s; it has: %s", c.CommandPath(), name, meant(name, names, ""), strings.Join(names, ", "))
}

// arguments says that there are too few or too many where cobra's own check does; another check says itself what is wrong.
func arguments(c *cobra.Command, check cobra.PositionalArgs, args []string, err error) error {
	n := len(args)
	of := func(n int) error { return check(c, make([]string, n)) }
	switch text := err.Error(); {
	case !strings.HasPrefix(text, "accepts ") && !strings.HasPrefix(text, "requires ") && !strings.HasPrefix(text, "unknown command "):
		return err
	case n > 0 && of(0) == nil && of(1) != nil:
		return fmt.Errorf("%s takes no arguments, and got %q", c.CommandPath(), args)
	case n > 0 && of(n-1) == nil || n > 1 && of(1) == nil:
		return fmt.Errorf("%s got too many arguments: %q", c.CommandPath(), args)
	case n == 0 && of(1) == nil:
		return errors.New("an argument is missing")
	case of(n+1) == nil || of(n+2) == nil:
		return fmt.Errorf("arguments are missing: there are %d", n)
	}
	return err
}

// flag says what is wrong with one.
func flag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		if unknown.GetSpecifiedShortnames() != "" {
			return fmt.Errorf("%s has no flag -%s in -%s; %s --help lists those that it has", c.CommandPath(), unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames(), c.CommandPath())
		}
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		name := unknown.GetSpecifiedName()
		return fmt.Errorf("%s has no flag --%s%s; %s --help lists those that it has", c.CommandPath(), name, meant(name, names, "--"), c.CommandPath())
	case errors.As(err, &invalid):
		if want := lacking(invalid.GetFlag().Value.Type()); want != "" {
			return fmt.Errorf("--%s %q is %s", invalid.GetFlag().Name, invalid.GetValue(), want)
		}
	}
	return err
}

// lacking is what a value of a flag's type is not.
func lacking(kind string) string {
	switch kind {
	case "duration":
		return "no duration; write a number with its unit, as in 30s or 5m"
	case "int", "int32", "int64":
		return "no whole number"
	case "uint", "uint32", "uint64":
		return "no whole number from 0"
	case "float64":
		return "no number"
	case "intSlice":
		return "no list of whole numbers, as in 1,8,32"
	case "stringToInt64":
		return "no list of names and whole numbers, as in sequence=256"
	case "bool":
		return "neither true nor false"
	}
	return ""
}

// meant asks whether another word was, where one is near.
func meant(word string, known []string, before string) string {
	if near := spelling.Nearest(word, known); near != "" {
		return fmt.Sprintf(" (did you mean %s%s?)", before, near)
	}
	return ""
}
