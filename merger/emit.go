// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// Emit writes the merge of that mode into a new directory: a model directory for each part, and the manifest. The members are those of
// the analysis, which must find the mode feasible. What is written is not verified yet.
func (a *Analysis) Emit(ctx context.Context, dir, name string, mode Mode) (*Manifest, error) {
	r := a.Report.Mode(mode)
	switch {
	case r == nil:
		return nil, fmt.Errorf("mode %q: the modes are %v", mode, Modes())
	case !r.Feasible:
		return nil, fmt.Errorf("mode %s: %s", mode, r.Reason)
	case !goodName.MatchString(name):
		return nil, fmt.Errorf("%q cannot be the name of a model: letters, digits, and _ . - in it", name)
	}
	configs := make([]config, len(a.graphs))
	for i, g := range a.graphs {
		if g.Dir == "" {
			return nil, fmt.Errorf("%s: a graph alone: emit needs the model's directory with its config.pbtxt", g.Graph)
		}
		var err error
		if configs[i], err = readConfig(g.Dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	m := &Manifest{
		Format: 2, Name: name, Mode: mode, SharedBytes: r.SharedBytes, SeparateBytes: r.SeparateBytes, MergedBytes: r.MergedBytes,
		SeparateSeconds: r.SeparateSeconds, MergedSeconds: r.MergedSeconds, SuperOperators: r.SuperOperators, Refusals: a.Report.Unproved,
	}
	e := emitting{a: a, dir: dir, m: m, configs: configs}
	for i, g := range a.graphs {
		content, err := g.content(ctx)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		m.Members = append(m.Members, ManifestMember{
			Name: g.Name, Content: content, Inputs: g.inputs(), Outputs: ios(g.model.Graph.Outputs), MaxBatch: configs[i].maxBatch,
		})
	}
	m.Digest = m.digest()
	write := e.fused
	if mode == Backbone {
		write = e.backbone
	}
	err := write(ctx)
	if err == nil {
		err = m.write(dir)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return m, nil
}

// digest identifies the recipe and the members' content.
func (m *Manifest) digest() string {
	h := newHasher("merge 3")
	h.text(string(m.Mode))
	for _, member := range m.Members {
		h.text(member.Name)
		h.text(member.Content)
	}
	return fmt.Sprintf("%x", h.sum())
}

// content identifies a member: graph, weights, configuration and other files.
func (g *graph) content(ctx context.Context) (string, error) {
	h := newHasher("member")
	for _, n := range g.order {
		h.text(n.Op)
		for _, name := range n.Outputs {
			h.text(name)
			h.digest(g.values[name])
		}
	}
	others, err := g.otherFiles()
	if err != nil {
		return "", err
	}
	if err := g.hashFiles(ctx, h, append([]string{"config.pbtxt"}, others...)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.sum()), nil
}

// contentOf reads the member whose model directory that is.
func contentOf(ctx context.Context, name, dir string) (content string, err error) {
	m, err := Find(dir)
	if err != nil {
		return "", err
	}
	if m.Dir == "" {
		return "", fmt.Errorf("%s is not a model's directory", dir)
	}
	m.Name = name
	g, err := open(m)
	if err != nil {
		return "", err
	}
	defer g.close() //nolint:errcheck // only read from
	if err := errors.Join(g.hashWeights(ctx, func(int64) {}), g.hashValues()); err != nil {
		return "", err
	}
	return g.content(ctx)
}

// emitting writes one merge.
type emitting struct {
	a       *Analysis
	dir     string
	m       *Manifest
	configs []config
}

// part writes one model directory, with backend and files of the member that it is made from.
func (e *emitting) part(ctx context.Context, p Part, from, maxBatch int, model *onnx.Model, source onnx.Source, comment string) error {
	p.Inputs, p.Outputs = ios(model.Graph.Inputs), ios(model.Graph.Outputs)
	text, err := e.configs[from].of(p, maxBatch, comment)
	if err != nil {
		return err
	}
	version := filepath.Join(e.dir, p.Name, "1")
	if err := os.MkdirAll(version, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(e.dir, p.Name, "config.pbtxt"), text, 0o644); err != nil { //nolint:gosec // served by another user
		return err
	}
	if err := e.a.graphs[from].copyFiles(ctx, version); err != nil {
		return err
	}
	e.m.Parts = append(e.m.Parts, p)
	return onnx.Write(filepath.Join(version, GraphFile), model, until{ctx, source})
}

// backbone writes the group: one model, whose batch holds rows of any of the members.
func (e *emitting) backbone(ctx context.Context) error {
	most := 0
	for i, x := range e.configs {
		if err := e.sameServing(ctx, i); err != nil {
			return err
		}
		most = max(most, x.maxBatch)
	}
	if most < 2 {
		return errors.New("max_batch_size is 1: no batch could hold rows of two members")
	}
	built := e.a.cut.groupModel()
	e.m.HeadsTogether = built.stack != nil
	e.m.Proof = e.a.cut.members[0].proof(e.a.cut.backbone)
	if built.stack != nil {
		e.m.Proof = append(e.m.Proof, e.a.cut.members[0].proof(e.a.cut.heads[0].nodes)...)
	}
	for i := range e.m.Members {
		e.m.Members[i].As = built.outputs(i)
	}
	return e.part(ctx, Part{Name: e.m.Name, Role: RoleGroup}, 0, most, built.model, built.source, "A merge group, made by Conch.")
}

// sameServing refuses a member that is served otherwise than the first: by another backend, or by other code around its graph.
func (e *emitting) sameServing(ctx context.Context, i int) error {
	first, g := e.a.graphs[0], e.a.graphs[i]
	if !slices.Equal(e.configs[0].serving(), e.configs[i].serving()) {
		return fmt.Errorf("%s and %s have other backends or parameters in config.pbtxt", first.Name, g.Name)
	}
	sums := [2]hasher{newHasher("files"), newHasher("files")}
	for k, member := range []*graph{first, g} {
		others, err := member.otherFiles()
		if err != nil {
			return err
		}
		if err := member.hashFiles(ctx, sums[k], others); err != nil {
			return err
		}
	}
	if sums[0].sum() != sums[1].sum() {
		return fmt.Errorf("%s and %s have other files beside their graphs, which may prepare inputs or outputs otherwise", first.Name, g.Name)
	}
	return nil
}

func (e *emitting) fused(ctx context.Context) error {
	built, err := e.a.fusion.build(e.m.Mode)
	if err != nil {
		return err
	}
	for _, p := range e.a.graphs[0].order {
		if pair := e.a.fusion.pairs[p]; pair != nil {
			e.m.Proof = append(e.m.Proof, e.a.graphs[0].proof([]*onnx.Node{p})...)
		}
	}
	maxBatch := max(e.configs[0].maxBatch, e.configs[1].maxBatch)
	return e.part(ctx, Part{Name: e.m.Name, Role: RoleFused}, 0, maxBatch, built.model, built.source, "Two models in one graph, made by Conch; "+NotServed+".")
}
