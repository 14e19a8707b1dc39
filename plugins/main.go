// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command conch-policies serves one of Conch's built-in policies as a plugin
// process. Conch starts it; started by hand, it lists the policies.
//
//	conch-policies NAME    serve the policy NAME (only under Conch)
//	conch-policies -list   print the names, one per line
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
)

func main() {
	os.Exit(run(os.Args[1:], policy.Hosted(os.Getenv), os.Stdout, os.Stderr))
}

// run returns the status to exit with: 0, or 2 where the call is wrong.
func run(args []string, hosted bool, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "-list" {
		for _, name := range builtin.Names() {
			fmt.Fprintln(stdout, name)
		}
		return 0
	}
	if len(args) != 1 {
		usage(stderr)
		return 2
	}
	p, ok := builtin.New(args[0])
	if !ok {
		fmt.Fprintf(stderr, "conch-policies: there is no built-in policy %q\n", args[0])
		usage(stderr)
		return 2
	}
	if !hosted {
		fmt.Fprintf(stderr, "conch-policies: %s is served to Conch, which starts this program itself: name it in conch.yaml under policy.\n", args[0])
		usage(stderr)
		return 2
	}
	policy.Serve(p)
	return 0
}

func usage(w io.Writer) {
	fmt.Fprint(w, "\nconch-policies NAME    serve one of Conch's built-in policies (Conch does it)\nconch-policies -list   print their names\n\nPolicies:\n")
	for _, name := range builtin.Names() {
		p, _ := builtin.New(name)
		d, err := p.Describe(context.Background())
		if err != nil {
			fmt.Fprintf(w, "  %-10s %v\n", name, err)
			continue
		}
		fmt.Fprintf(w, "  %-10s %s\n", name, d.GetSummary())
	}
}
