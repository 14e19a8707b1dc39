// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/rows"
)

// ManifestFile is the name of the manifest in a merge's directory.
const ManifestFile = "merge.json"

// Manifest says what a merge is made of and why it may be.
type Manifest struct {
	// Format of this file.
	Format int    `json:"format"`
	Name   string `json:"name"`
	Mode   Mode   `json:"mode"`
	// Digest is of the recipe and the members' content: it changes when a member does.
	Digest  string           `json:"digest"`
	Members []ManifestMember `json:"members"`
	// Parts are the models that were made, each a directory beside this file.
	Parts []Part `json:"parts"`
	// HeadsTogether says that the members' heads run as one; otherwise each runs on its own rows.
	HeadsTogether bool `json:"heads_together,omitempty"`

	SharedBytes   int64 `json:"shared_bytes"`
	SeparateBytes int64 `json:"separate_bytes"`
	MergedBytes   int64 `json:"merged_bytes"`
	// The predicted times of one execution of every member, separate and merged; 0 without a prediction.
	SeparateSeconds float64 `json:"separate_seconds,omitempty"`
	MergedSeconds   float64 `json:"merged_seconds,omitempty"`

	// Proof has a line for each node that runs on rows of several members: what is known of its first output, and so why its rows stay
	// apart.
	Proof          []ProofLine     `json:"proof"`
	SuperOperators []SuperOperator `json:"super_operators,omitempty"`
	Refusals       []Refusal       `json:"refusals,omitempty"`
	// Verification is nil until Verify has run: such a merge must not serve.
	Verification *Verification `json:"verification,omitempty"`
}

// ManifestMember is a member and how its tensors map to those of the parts.
type ManifestMember struct {
	Name string `json:"name"`
	// Content identifies graph, weights, configuration and other files of the member that the merge was made of.
	Content string `json:"content"`
	Inputs  []IO   `json:"inputs"`
	Outputs []IO   `json:"outputs"`
	// MaxBatch is the member's max_batch_size.
	MaxBatch int `json:"max_batch"`
	// As maps the member's outputs to those of the group.
	As map[string]string `json:"as,omitempty"`
}

// IO is an input or output of a model.
type IO struct {
	Name string        `json:"name"`
	Type onnx.DataType `json:"type"`
	// Dims are those of one row; -1 where a request decides.
	Dims []int64 `json:"dims"`
	// Below bounds the values of an integer input that looks something up; 0 where nothing does.
	Below int64 `json:"below,omitempty"`
}

// Role is what a part is in its merge.
type Role string

// The roles of parts: a model whose batches hold rows of any member, and one that takes a batch of each.
const (
	RoleGroup Role = "group"
	RoleFused Role = "fused"
)

// Part is one model of a merge.
type Part struct {
	Name    string `json:"name"`
	Role    Role   `json:"role"`
	Inputs  []IO   `json:"inputs"`
	Outputs []IO   `json:"outputs"`
}

// ProofLine is one node of the separability proof.
type ProofLine struct {
	Node string `json:"node"`
	Op   string `json:"op"`
	Fact string `json:"fact"`
}

// Verification is what running a merge beside its members showed.
type Verification struct {
	// Runner names what ran it.
	Runner string `json:"runner"`
	Runs   int    `json:"runs"`
	// MaxDifference is the largest difference of any output element from the member's own, over the largest element of that output;
	// Bound is what was allowed.
	MaxDifference float64 `json:"max_difference"`
	Bound         float64 `json:"bound"`
	// Files are the digests of all files of the parts that were run. Load refuses a merge whose files are others.
	Files map[string]string `json:"files"`
}

// ErrUnverified is wrapped by errors of merges that must not serve.
var ErrUnverified = errors.New("the merge is not verified")

// Read reads the manifest of a merge's directory, verified or not.
func Read(dir string) (*Manifest, error) {
	text, err := modeldir.ReadFile(dir, ManifestFile)
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ManifestFile), err)
	}
	if m.Format != 2 {
		return nil, fmt.Errorf("%s: format %d, this build reads 2", filepath.Join(dir, ManifestFile), m.Format)
	}
	for _, p := range m.Parts {
		if !filepath.IsLocal(p.Name) || filepath.Base(p.Name) != p.Name {
			return nil, fmt.Errorf("%s: a part called %q", filepath.Join(dir, ManifestFile), p.Name)
		}
	}
	return m, nil
}

// ErrDiffers is wrapped by errors of Verify that say of the merge itself that it is not what its members are, or that nothing shows that it is:
// another try ends the same.
var ErrDiffers = errors.New("the merge cannot stand for its members")

// Load is Read for serving: the error wraps ErrUnverified unless the merge was verified and its files are those that were.
func Load(ctx context.Context, dir string) (*Manifest, error) {
	m, err := Read(dir)
	if err != nil {
		return nil, err
	}
	if m.Verification == nil {
		return nil, fmt.Errorf("%s: %w: run tritonctl merge verify", dir, ErrUnverified)
	}
	files, err := m.digests(ctx, dir)
	if err != nil {
		return nil, err
	}
	for path, d := range files {
		if m.Verification.Files[path] != d {
			return nil, fmt.Errorf("%s: %w: %s changed since", dir, ErrUnverified, path)
		}
	}
	if len(files) != len(m.Verification.Files) {
		return nil, fmt.Errorf("%s: %w: files are missing", dir, ErrUnverified)
	}
	return m, nil
}

// write writes the manifest, atomically.
func (m *Manifest) write(dir string) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".merge-*")
	if err != nil {
		return err
	}
	_, writing := f.Write(append(text, '\n'))
	if err := errors.Join(writing, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), filepath.Join(dir, ManifestFile))
}

// ios are the tensors of a graph as a model's configuration declares them.
func ios(values []*onnx.Value) []IO {
	var out []IO
	for _, v := range values {
		io := IO{Name: v.Name, Type: v.Type.Elem, Dims: []int64{}}
		for _, d := range v.Type.Dims[min(1, len(v.Type.Dims)):] {
			io.Dims = append(io.Dims, d.Size)
		}
		out = append(out, io)
	}
	return out
}

// inputs are the member's inputs, with bounds where they look something up.
func (g *graph) inputs() []IO {
	out := ios(g.model.Graph.Feeds())
	for i := range out {
		out[i].Below = g.below(out[i].Name, 0)
	}
	return out
}

// below is the size of the smallest table that the value is an index of, 0 if of none.
func (g *graph) below(value string, deep int) int64 {
	least := int64(0)
	note := func(n int64) {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	for _, n := range g.order {
		for i, name := range n.Inputs {
			if name != value {
				continue
			}
			switch {
			case n.Op == "Gather" && i == 1:
				if f := g.fact(n.Inputs[0]); f.State == rows.Constant {
					axis := n.Int("axis", 0)
					if axis >= 0 && int(axis) < len(f.Shape) {
						size, _ := f.Shape[axis].Fixed()
						note(size)
					}
				}
			case (n.Op == "Cast" || n.Op == "Identity" || n.Op == "Reshape" || n.Op == "Unsqueeze" || n.Op == "Squeeze") && i == 0 && deep < 8:
				note(g.below(n.Outputs[0], deep+1))
			}
		}
	}
	return least
}

// proof lists nodes with what is known of what they compute.
func (g *graph) proof(nodes []*onnx.Node) []ProofLine {
	var lines []ProofLine
	for _, n := range nodes {
		line := ProofLine{Node: nameOf(n), Op: n.Op}
		if len(n.Outputs) > 0 {
			line.Fact = g.fact(n.Outputs[0]).String()
		}
		lines = append(lines, line)
	}
	return lines
}
