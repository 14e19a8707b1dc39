// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Tally counts the partitions (or GPUs) that were tried for a model and why
// each would not do. The zero Tally is empty.
type Tally struct {
	tried  uint32
	causes map[string]uint32
}

// Try counts one place that was looked at; cause is empty where it would do.
func (t *Tally) Try(cause string) { t.Add(cause, 1) }

// Add counts places that are alike: so many with the cause, as [Tally.Try] counts one.
func (t *Tally) Add(cause string, count uint32) {
	t.tried += count
	if cause == "" {
		return
	}
	if t.causes == nil {
		t.causes = make(map[string]uint32)
	}
	t.causes[cause] += count
}

// Unplaced is the tally as the plan's entry for the model.
func (t *Tally) Unplaced(model string) *Unplaced {
	u := &Unplaced{Model: model, Tried: t.tried}
	for cause, count := range t.causes {
		u.Refusals = append(u.Refusals, &Refusal{Cause: cause, Count: count})
	}
	slices.SortFunc(u.Refusals, func(a, b *Refusal) int {
		return cmp.Or(cmp.Compare(b.GetCount(), a.GetCount()), cmp.Compare(a.GetCause(), b.GetCause()))
	})
	u.Text = FormatRefusals(u.Tried, u.Refusals)
	return u
}

// FormatRefusals is the one form in which Conch says why a model has no place:
// "0/8 partitions: 5 memory, 3 latency".
func FormatRefusals(tried uint32, refusals []*Refusal) string {
	placed := tried
	parts := make([]string, len(refusals))
	for i, r := range refusals {
		parts[i] = fmt.Sprintf("%d %s", r.GetCount(), r.GetCause())
		placed -= min(placed, r.GetCount())
	}
	text := fmt.Sprintf("%d/%d partitions", placed, tried)
	if len(parts) == 0 {
		if tried == 0 {
			return text + ": there are none"
		}
		return text
	}
	return text + ": " + strings.Join(parts, ", ")
}

// shortOfLoad ends the reason that a plan counts on less than a model's load.
const shortOfLoad = "rows/s less than it has"

// Short is the reason that the instances of a model together are counted on for so many rows per second less than its load.
func Short(model string, rows float64) *Reason {
	return &Reason{Model: model, Text: fmt.Sprintf("its instances are counted on for %.4g %s", rows, shortOfLoad)}
}

// ShortOf is the model whose load the reason says the plan does not carry, empty for any other reason.
func (r *Reason) ShortOf() string {
	if strings.HasSuffix(r.GetText(), shortOfLoad) {
		return r.GetModel()
	}
	return ""
}

// nameless ends the remark that a parameter names a model that the snapshot does not have.
const nameless = ", which the repository does not have"

// Unknown is the remark that a parameter names a model that the snapshot does not have.
func Unknown(parameter, model string) *Reason {
	return &Reason{Text: fmt.Sprintf("parameter %s names the model %q%s", parameter, model, nameless)}
}

// UnknownModel is the parameter and the model of a remark that Unknown has made; empty for any other.
func (r *Reason) UnknownModel() (parameter, model string) {
	text, ends := strings.CutSuffix(r.GetText(), nameless)
	text, begins := strings.CutPrefix(text, "parameter ")
	parameter, quoted, names := strings.Cut(text, " names the model ")
	model, err := strconv.Unquote(quoted)
	if !ends || !begins || !names || err != nil {
		return "", ""
	}
	return parameter, model
}
