// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// described is a policy that has a description and no plan.
type described struct {
	policy.Policy
	as *policy.Description
}

func (d described) Describe(context.Context) (*policy.Description, error) { return d.as, nil }

func TestParameters(t *testing.T) {
	d := &policy.Description{Name: "p", Parameters: []*policy.Parameter{
		{Name: "on", Type: policy.TypeBool, DefaultValue: "true"}, {Name: "part", Type: policy.TypeFloat, DefaultValue: "0.5"},
		{Name: "most", Type: policy.TypeInt, DefaultValue: "2"}, {Name: "sizes", Type: policy.TypeString, DefaultValue: "20, 50,100"},
	}}
	for _, test := range []struct {
		name  string
		set   map[string]string
		wrong string
	}{
		{"defaults", nil, ""},
		{"the first that is out of bounds", map[string]string{"part": "2", "most": "0"}, `p: parameter part: "2" is not from 0 to 1`},
		{"too few", map[string]string{"most": "0"}, `p: parameter most: "0" is not 1 or more`},
		{"no number", map[string]string{"part": "NaN"}, `p: parameter part: "NaN" is not from 0 to 1`},
		{"too long for an int", map[string]string{"most": "9223372036854775808"}, `policy p, parameter most: "9223372036854775808" is not a value of type int`},
		{"not ascending", map[string]string{"sizes": "20,20"}, `p: parameter sizes: "20,20" is not ascending percents`},
		{"above the limit", map[string]string{"sizes": "101"}, `p: parameter sizes: "101" is not ascending percents`},
		{"empty", map[string]string{"sizes": "20,"}, `p: parameter sizes: "20," is not ascending percents`},
		{"unknown", map[string]string{"nothing": "1"}, "nothing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := pack.Read(described{as: d}, &policy.Snapshot{Parameters: test.set})
			if err == nil {
				on, part := p.Bool("on"), p.Float("part", pack.Between(0., 1), "from 0 to 1")
				most, sizes := p.Int("most", pack.AtLeast(1), "1 or more"), p.Ascending("sizes", 100, "ascending percents")
				if err = p.Err(); err == nil {
					require.True(t, on)
					require.Equal(t, "true", p.Text("on"))
					require.InDelta(t, .5, part, 0)
					require.Equal(t, 2, most)
					require.Equal(t, []uint32{20, 50, 100}, sizes)
				}
			}
			if test.wrong == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.wrong)
			}
		})
	}
}
