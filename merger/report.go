// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Report is the result of an analysis, as text and as JSON.
type Report struct {
	Members []MemberReport `json:"members"`
	// Families are the names of members whose graphs have the same structure, weights left out.
	Families [][]string   `json:"families"`
	Modes    []ModeReport `json:"modes,omitempty"`
	// Refusals are reasons why a member, or a node of one, cannot be shared.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Unproved are nodes that no rule proves to keep rows apart: they are never shared, and everything behind them is not either.
	Unproved []Refusal `json:"unproved,omitempty"`
}

// MemberReport is a member as it was read.
type MemberReport struct {
	Name        string `json:"name"`
	Graph       string `json:"graph"`
	Nodes       int    `json:"nodes"`
	WeightBytes int64  `json:"weight_bytes"`
	Opset       int64  `json:"opset"`
	// Structure is equal for members of the same architecture.
	Structure string `json:"structure"`
}

// ModeReport is what one mode would give.
type ModeReport struct {
	Mode     Mode `json:"mode"`
	Feasible bool `json:"feasible"`
	// Serves says whether Conch can serve what comes out.
	Serves bool `json:"serves"`
	// Reason is why not feasible, or why not served.
	Reason string `json:"reason,omitempty"`
	// SharedNodes and SharedBytes are what several members use together, counted once.
	SharedNodes   int   `json:"shared_nodes"`
	SharedBytes   int64 `json:"shared_bytes"`
	SeparateBytes int64 `json:"separate_bytes"`
	MergedBytes   int64 `json:"merged_bytes"`
	// The times are predictions of one execution of every member with RowsPerMember rows; 0 without a cost function.
	RowsPerMember   int     `json:"rows_per_member,omitempty"`
	SeparateSeconds float64 `json:"separate_seconds,omitempty"`
	MergedSeconds   float64 `json:"merged_seconds,omitempty"`
	CostError       string  `json:"cost_error,omitempty"`
	// Frontier is what crosses from the backbone to the heads.
	Frontier []string `json:"frontier,omitempty"`
	// SuperOperators are the operators that are merged although their weights differ.
	SuperOperators []SuperOperator `json:"super_operators,omitempty"`
}

// SuperOperator is a pair of operators whose weights are partly equal.
type SuperOperator struct {
	Nodes [2]string `json:"nodes"`
	Op    string    `json:"op"`
	// Similarity is the fraction of equal weights in what is shared.
	Similarity float64 `json:"similarity"`
	// Shared says which part: whole output channels, or a rectangle.
	Shared string `json:"shared"`
}

// Refusal is something that is not merged, and why.
type Refusal struct {
	Member string `json:"member"`
	Node   string `json:"node,omitempty"`
	Op     string `json:"op,omitempty"`
	Reason string `json:"reason"`
}

// Unreadable says that not even one of the models could be read, and why the first could not; nil where one could.
func (r *Report) Unreadable() error {
	if len(r.Members) > 0 || len(r.Refusals) == 0 {
		return nil
	}
	return fmt.Errorf("none of the models could be read; %s: %s", r.Refusals[0].Member, r.Refusals[0].Reason)
}

// Mode is the report of a mode, nil if there is none.
func (r *Report) Mode(m Mode) *ModeReport {
	for i := range r.Modes {
		if r.Modes[i].Mode == m {
			return &r.Modes[i]
		}
	}
	return nil
}

// unproved adds the member's nodes that are not proved; those that only follow from others are left out.
func (r *Report) unproved(g *graph) {
	if g.facts == nil {
		return
	}
	for _, n := range g.order {
		if why, refused := g.facts.Refused[n]; refused && !why.Follows {
			r.Unproved = append(r.Unproved, Refusal{Member: g.Name, Node: why.Node, Op: why.Op, Reason: why.Reason})
		}
	}
}

// Text writes the report as text.
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "MEMBER\tNODES\tWEIGHTS\tOPSET\tSTRUCTURE")
	for _, m := range r.Members {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%s\n", m.Name, m.Nodes, size(m.WeightBytes), m.Opset, m.Structure)
	}
	if len(r.Modes) > 0 {
		fmt.Fprintln(t, "\nMODE\tSHARED\tSEPARATE\tMERGED\tTIME\tREMARK")
	}
	for _, m := range r.Modes {
		if !m.Feasible {
			fmt.Fprintf(t, "%s\t-\t-\t-\t-\tno: %s\n", m.Mode, m.Reason)
			continue
		}
		took := "-"
		if m.SeparateSeconds > 0 {
			took = fmt.Sprintf("x%.2f", m.MergedSeconds/m.SeparateSeconds)
		}
		ratio := "no weights"
		if m.SeparateBytes > 0 {
			ratio = fmt.Sprintf("x%.2f", float64(m.MergedBytes)/float64(m.SeparateBytes))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s (%s)\t%s\t%s\n", m.Mode, size(m.SharedBytes), size(m.SeparateBytes), size(m.MergedBytes), ratio, took, m.Reason)
	}
	for _, m := range r.Modes {
		for _, f := range m.Frontier {
			fmt.Fprintf(t, "\n%s crosses: %s", m.Mode, f)
		}
		if n := len(m.SuperOperators); n > 0 {
			fmt.Fprintf(t, "\n%s: %d operators with partly equal weights, such as %s and %s (%s)", m.Mode, n,
				m.SuperOperators[0].Nodes[0], m.SuperOperators[0].Nodes[1], m.SuperOperators[0].Shared)
		}
	}
	fmt.Fprintln(t)
	for _, x := range r.Refusals {
		fmt.Fprintf(t, "refused: %s: %s\n", x.Member, x.Reason)
	}
	for i, x := range r.Unproved {
		if i == 10 {
			fmt.Fprintf(t, "not shared: %d more nodes (-o json lists them)\n", len(r.Unproved)-i)
			break
		}
		fmt.Fprintf(t, "not shared: %s: %s (%s): %s\n", x.Member, x.Node, x.Op, x.Reason)
	}
	return t.Flush()
}

func size(bytes int64) string {
	switch {
	case bytes >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(bytes)/1e9)
	case bytes >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	default:
		return fmt.Sprintf("%.1f kB", float64(bytes)/1e3)
	}
}
