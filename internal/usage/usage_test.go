// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usage_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/usage"
)

var errWrong = errors.New("wrong")

// tree is a program with a group, a command with everything, and one that a check of its own refuses.
func tree() *cobra.Command {
	nothing := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "shell", SilenceUsage: true, SilenceErrors: true}
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error { return usage.Flags(c, errWrong) }
	group := &cobra.Command{Use: "sea", Short: "The sea"}
	one := &cobra.Command{Use: "get SHELL", Args: cobra.ExactArgs(1), RunE: nothing}
	one.Flags().Duration("for", time.Second, "how long")
	one.Flags().Uint("depth", 0, "how deep")
	one.Flags().Bool("wet", false, "in the water")
	one.Flags().Float64("salt", 0, "share of it")
	one.Flags().IntSlice("sizes", nil, "sizes")
	one.Flags().StringToInt64("dim", nil, "dimensions")
	one.Flags().BoolP("all", "a", false, "all of them")
	one.MarkFlagsMutuallyExclusive("wet", "all")
	needs := &cobra.Command{Use: "needs", Args: cobra.NoArgs, RunE: nothing}
	needs.Flags().String("from", "", "file of shells")
	_ = needs.MarkFlagRequired("from")
	own := &cobra.Command{Use: "own", RunE: nothing, Args: func(*cobra.Command, []string) error { return errors.New("not today") }}
	many := &cobra.Command{Use: "many SHELL SHELL...", RunE: nothing, Args: cobra.MinimumNArgs(2)}
	group.AddCommand(one, needs, own, many)
	root.AddCommand(group)
	return root
}

func TestWhatIsWrong(t *testing.T) {
	for line, want := range map[string]string{
		"see":                           `wrong: shell has no command "see" (did you mean sea?); it has: completion, sea`,
		"sea gett":                      `wrong: shell sea has no command "gett" (did you mean get?); it has: get, many, needs, own`,
		"help see":                      `wrong: shell has no command "see" (did you mean sea?); it has: completion, sea`,
		"help sea get more":             `wrong: shell sea get has no command "more"`,
		"completion fisch":              `(did you mean fish?)`,
		"sea get":                       "wrong: an argument is missing; it is shell sea get SHELL [flags]",
		"sea get a b":                   `wrong: shell sea get got too many arguments: ["a" "b"]; it is shell sea get SHELL [flags]`,
		"sea many":                      "wrong: arguments are missing: there are 0; it is shell sea many SHELL SHELL... [flags]",
		"sea needs a --from x":          `wrong: shell sea needs takes no arguments, and got ["a"]; it is shell sea needs [flags]`,
		"sea own":                       "wrong: not today; it is shell sea own [flags]",
		"sea needs":                     "wrong: shell sea needs needs --from (file of shells)",
		"sea get a --depht 1":           "wrong: shell sea get has no flag --depht (did you mean --depth?); shell sea get --help lists those that it has",
		"sea get a --nothing-like-that": "wrong: shell sea get has no flag --nothing-like-that; shell sea get --help lists those that it has",
		"sea get a -x":                  "wrong: shell sea get has no flag -x in -x; shell sea get --help lists those that it has",
		"sea get a --for 5":             `wrong: --for "5" is no duration; write a number with its unit, as in 30s or 5m`,
		"sea get a --depth -1":          `wrong: --depth "-1" is no whole number from 0`,
		"sea get a --salt much":         `wrong: --salt "much" is no number`,
		"sea get a --sizes 1,x":         `wrong: --sizes "1,x" is no list of whole numbers, as in 1,8,32`,
		"sea get a --dim length":        `wrong: --dim "length" is no list of names and whole numbers, as in sequence=256`,
		"sea get a --wet=perhaps":       `wrong: --wet "perhaps" is neither true nor false`,
		"sea get a --wet --all":         "wrong: ",
		"sea get a --for":               "wrong: flag needs an argument: --for",
	} {
		root := tree()
		root.SetOut(&bytes.Buffer{})
		usage.Mark(root, errWrong)
		root.SetArgs(strings.Fields(line))
		err := root.Execute()
		require.ErrorIs(t, err, errWrong, line)
		require.ErrorContains(t, err, want, line)
	}
}

func TestAQuestionForHelpIsNotWrong(t *testing.T) {
	for line, want := range map[string]string{
		"": "Available Commands", "sea": "The sea", "sea help": "The sea", "help": "Available Commands", "help sea get": "shell sea get SHELL", "completion bash": "shell",
		"sea get a --for 5s": "",
	} {
		var out bytes.Buffer
		root := tree()
		root.SetOut(&out)
		usage.Mark(root, errWrong)
		root.SetArgs(strings.Fields(line))
		require.NoError(t, root.Execute(), line)
		require.Contains(t, out.String(), want, line)
	}
}
