// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/onnx"
)

// Runner runs models: a Triton of the user's, or ONNX Runtime in a test.
type Runner interface {
	// Name says what it is, for the manifest.
	Name() string
	// Load makes the model of a directory ready under its name.
	Load(ctx context.Context, name, dir string) error
	// Run executes it once. Inputs have the batch on axis 0.
	Run(ctx context.Context, name string, inputs []onnx.Array) ([]onnx.Array, error)
	// Unload ends what Load began.
	Unload(ctx context.Context, name string) error
}

// VerifyOptions of Verify. The zero value is usable.
type VerifyOptions struct {
	// Bound is the largest difference allowed of any output element, relative to the largest element of that output; 1e-5 if 0, which
	// leaves room for the order of additions in single precision.
	Bound float64
	// Open is the size that dimensions take which requests decide; 8 if 0.
	Open int64
	Seed uint64
	// Progress is called before each run.
	Progress func(done, total int, what string)
}

// Verify runs members and parts on the same generated rows and compares: batches of (1,1), (2,3), (1,max) and (0,n) rows of two members
// at a time, each twice with other rows of the neighbour (NaN where the inputs are floats), which must change nothing. Directories holds
// the members' model directories by name. On success the manifest in dir gets its Verification; the returned error names the member,
// output and rows that differ. A merge whose outputs do not depend on their rows cannot be verified.
func Verify(ctx context.Context, dir string, directories map[string]string, run Runner, o VerifyOptions) (*Manifest, error) {
	m, err := Read(dir)
	if err != nil {
		return nil, err
	}
	if o.Bound == 0 {
		o.Bound = 1e-5
	}
	if o.Open == 0 {
		o.Open = 8
	}
	if o.Progress == nil {
		o.Progress = func(int, int, string) {}
	}
	files, err := m.digests(ctx, dir) // before the runs: what is changed during them was not run
	if err != nil {
		return nil, err
	}
	v := &verifying{m: m, run: run, o: o, random: rand.New(rand.NewPCG(o.Seed, 15))}
	worst, err := v.all(ctx, dir, directories)
	m.Verification = nil
	if err == nil {
		m.Verification = &Verification{Runner: run.Name(), Runs: v.runs, MaxDifference: worst, Bound: o.Bound, Files: files}
	}
	return m, errors.Join(err, m.write(dir))
}

// verifying is one verification.
type verifying struct {
	m      *Manifest
	run    Runner
	o      VerifyOptions
	random *rand.Rand
	runs   int
	worst  float64
	// swapped says in which order the last two members' rows were.
	swapped bool
	// varied says of a member's output that its rows differ from each other.
	varied map[string]bool
}

func (v *verifying) all(ctx context.Context, dir string, directories map[string]string) (worst float64, err error) {
	var loaded []string
	defer func() {
		for _, name := range slices.Backward(loaded) {
			err = errors.Join(err, v.run.Unload(ctx, name))
		}
	}()
	load := func(name, from string) error {
		if err := v.run.Load(ctx, name, from); err != nil {
			return fmt.Errorf("loading %s: %w", name, err)
		}
		loaded = append(loaded, name)
		return nil
	}
	for _, member := range v.m.Members {
		from := directories[member.Name]
		if from == "" {
			return 0, fmt.Errorf("no directory of member %s was given", member.Name)
		}
		content, err := contentOf(ctx, member.Name, from)
		if err != nil {
			return 0, fmt.Errorf("member %s: %w", member.Name, err)
		}
		if content != member.Content {
			return 0, fmt.Errorf("member %s changed since the merge was made of it: emit it again", member.Name)
		}
		if err := load(member.Name, from); err != nil {
			return 0, err
		}
	}
	for _, p := range v.m.Parts {
		if err := load(p.Name, filepath.Join(dir, p.Name)); err != nil {
			return 0, err
		}
	}
	v.varied = map[string]bool{}
	cases := v.cases()
	for i, c := range cases {
		v.o.Progress(i, len(cases), fmt.Sprintf("%d rows of %s beside %d of %s", c.rows[0], v.m.Members[c.members[0]].Name, c.rows[1], v.m.Members[c.members[1]].Name))
		if err := v.check(ctx, c); err != nil {
			return v.worst, err
		}
	}
	for _, member := range v.m.Members {
		for _, out := range member.Outputs {
			if !v.varied[member.Name+"\x00"+out.Name] {
				return v.worst, fmt.Errorf("%w: %s: output %q was the same for all rows: nothing shows that rows stay apart", ErrDiffers, member.Name, out.Name)
			}
		}
	}
	return v.worst, nil
}

// testCase is rows of two members in one batch.
type testCase struct{ members, rows [2]int }

// cases are the batches for each member and its neighbour.
func (v *verifying) cases() []testCase {
	var out []testCase
	for i := range v.m.Members {
		j := (i + 1) % len(v.m.Members)
		most := v.m.Members[j].MaxBatch
		for _, rows := range [][2]int{{1, 1}, {2, 3}, {1, most}, {0, min(3, most)}} {
			rows[0], rows[1] = min(rows[0], v.m.Members[i].MaxBatch), min(rows[1], most)
			if v.m.Mode == Backbone { // both share a batch of the group
				rows[1] = min(rows[1], v.m.most()-rows[0])
			}
			out = append(out, testCase{members: [2]int{i, j}, rows: rows})
		}
	}
	return out
}

// most is the largest batch of a group.
func (m *Manifest) most() int {
	most := 0
	for _, member := range m.Members {
		most = max(most, member.MaxBatch)
	}
	return most
}

func (v *verifying) check(ctx context.Context, c testCase) error {
	var inputs [2][]onnx.Array
	var want [2][]onnx.Array
	for side, i := range c.members {
		inputs[side] = v.generate(v.m.Members[i], c.rows[side])
		if c.rows[side] == 0 {
			continue
		}
		var err error
		if want[side], err = v.original(ctx, v.m.Members[i], inputs[side]); err != nil {
			return err
		}
	}
	got, err := v.merged(ctx, c, inputs)
	if err != nil {
		return err
	}
	for side := range inputs {
		if err := v.compare(c, side, want[side], got[side], "beside its neighbour"); err != nil {
			return err
		}
		// Other rows of the neighbour must change nothing.
		if c.rows[side] == 0 || c.rows[1-side] == 0 {
			continue
		}
		other := inputs
		other[1-side] = v.poison(inputs[1-side])
		got, err := v.merged(ctx, c, other)
		if err != nil {
			return err
		}
		if err := v.compare(c, side, want[side], got[side], "beside a neighbour with other rows"); err != nil {
			return err
		}
	}
	return nil
}

// original runs a member by itself.
func (v *verifying) original(ctx context.Context, m ManifestMember, inputs []onnx.Array) ([]onnx.Array, error) {
	v.runs++
	got, err := v.run.Run(ctx, m.Name, inputs)
	if err != nil {
		return nil, fmt.Errorf("running %s: %w", m.Name, err)
	}
	return got, nil
}

// merged runs the merge on rows of both members and gives each its outputs.
func (v *verifying) merged(ctx context.Context, c testCase, inputs [2][]onnx.Array) (out [2][]onnx.Array, err error) {
	v.runs++
	if v.m.Mode != Backbone {
		return v.fused(ctx, c, inputs)
	}
	group := v.m.Parts[0]
	// The neighbour's rows come first now and then: no order of members is required.
	v.swapped = !v.swapped
	order := []int{0, 1}
	if v.swapped {
		order = []int{1, 0}
	}
	var together []onnx.Array
	for _, in := range group.Inputs {
		if in.Name == MemberInput {
			continue
		}
		x, err := joinRows(find(inputs[order[0]], in.Name), find(inputs[order[1]], in.Name))
		if err != nil {
			return out, err
		}
		together = append(together, x)
	}
	whose := onnx.Array{Name: MemberInput, Type: onnx.Int32, Dims: []int64{int64(c.rows[0] + c.rows[1]), 1}}
	for _, side := range order {
		for range c.rows[side] {
			whose.Data = binary.LittleEndian.AppendUint32(whose.Data, uint32(c.members[side])) //nolint:gosec // small
		}
	}
	got, err := v.run.Run(ctx, group.Name, append(together, whose))
	if err != nil {
		return out, fmt.Errorf("running %s: %w", group.Name, err)
	}
	at := int64(0)
	for _, side := range order {
		m, rows := v.m.Members[c.members[side]], int64(c.rows[side])
		for _, o := range m.Outputs {
			y, err := takeRows(find(got, m.As[o.Name]), at, rows)
			if err != nil {
				return out, err
			}
			y.Name = o.Name
			out[side] = append(out[side], y)
		}
		at += rows
	}
	return out, nil
}

func (v *verifying) fused(ctx context.Context, c testCase, inputs [2][]onnx.Array) (out [2][]onnx.Array, err error) {
	var all []onnx.Array
	for side, list := range inputs {
		for _, x := range list {
			x.Name = prefixes[c.members[side]] + x.Name
			all = append(all, x)
		}
	}
	got, err := v.run.Run(ctx, v.m.Parts[0].Name, all)
	if err != nil {
		return out, fmt.Errorf("running %s: %w", v.m.Parts[0].Name, err)
	}
	for _, y := range got {
		for side, i := range c.members {
			if name, is := strings.CutPrefix(y.Name, prefixes[i]); is {
				y.Name = name
				out[side] = append(out[side], y)
			}
		}
	}
	return out, nil
}

// compare holds a member's outputs to its own.
func (v *verifying) compare(c testCase, side int, want, got []onnx.Array, when string) error {
	m := v.m.Members[c.members[side]]
	for _, w := range want {
		g := find(got, w.Name)
		if g.Type != w.Type || !slices.Equal(g.Dims, w.Dims) {
			return fmt.Errorf("%w: %s %s: output %q is %s %v, its own is %s %v", ErrDiffers, m.Name, when, w.Name, g.Type, g.Dims, w.Type, w.Dims)
		}
		d, err := difference(w, g)
		if err != nil {
			return fmt.Errorf("%s: output %q: %w", m.Name, w.Name, err)
		}
		if v.worst = max(v.worst, d); !(d <= v.o.Bound) {
			return fmt.Errorf("%w: %s %s, %v rows: output %q differs by %.3g of its largest element, %.3g is allowed", ErrDiffers, m.Name, when, c.rows, w.Name, d, v.o.Bound)
		}
		if differ(w, v.o.Bound) {
			v.varied[m.Name+"\x00"+w.Name] = true
		}
	}
	return nil
}

// difference is the largest difference of two outputs' elements over the largest element; NaN counts as infinite, unless both have it.
func difference(want, got onnx.Array) (float64, error) {
	a, err := numbers(want)
	if err != nil {
		return 0, err
	}
	b, err := numbers(got)
	if err != nil {
		return 0, err
	}
	if len(a) != len(b) {
		return math.Inf(1), nil
	}
	largest, most := 1e-30, 0.0
	for i := range a {
		if !math.IsNaN(a[i]) && !math.IsInf(a[i], 0) {
			largest = max(largest, math.Abs(a[i]))
		}
		d := math.Abs(a[i] - b[i])
		if math.IsNaN(a[i]) && math.IsNaN(b[i]) || a[i] == b[i] {
			d = 0
		} else if math.IsNaN(d) {
			d = math.Inf(1)
		}
		most = max(most, d)
	}
	return most / largest, nil
}

// differ says whether two rows of the output differ by more than a hundred times the bound.
func differ(x onnx.Array, bound float64) bool {
	rows := int(x.Dims[0])
	all, err := numbers(x)
	if err != nil || rows < 2 {
		return false
	}
	n := len(all) / rows
	for r := 1; r < rows; r++ {
		largest, most := 0.0, 0.0
		for i := range n {
			largest = max(largest, math.Abs(all[i]))
			most = max(most, math.Abs(all[i]-all[r*n+i]))
		}
		if most > 100*bound*largest {
			return true
		}
	}
	return false
}
