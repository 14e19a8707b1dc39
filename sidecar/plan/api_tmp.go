package plan

import (
	"errors"

	"github.com/conch-serving/conch/plugins/policy"
)

// Validate lists what is wrong with plan p as an answer to snapshot s.
func Validate(s *policy.Snapshot, p *policy.Plan) Violations { return nil }

// Compute compares two plans. A nil plan is an empty one. reload names models whose files changed.
func Compute(current, next *policy.Plan, reload ...string) *Diff { return nil }

// Changed names the models whose files differ between two snapshots, sorted.
func Changed(before, after *policy.Snapshot) []string { return nil }

// Empty reports that there is nothing to do.
func (d *Diff) Empty() bool { return true }

// Text renders the diff for a person.
func (d *Diff) Text() string { return "" }

// ErrUnknownModel: neither snapshot nor plan knows the model.
var ErrUnknownModel = errors.New("unknown model")

// Explanation says where a model is and why; JSON tagged.
type Explanation struct {
	Model string `json:"model"`
}

// Text renders the explanation for a person.
func (e *Explanation) Text() string { return "" }

// Explain says why a model is where it is.
func Explain(s *policy.Snapshot, p *policy.Plan, model string) (*Explanation, error) { return nil, nil }
