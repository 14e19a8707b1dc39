// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger/rows"
)

// GraphFile is the name of a model's graph in its version directory, which Triton's ONNX Runtime backend wants too.
const GraphFile = "model.onnx"

// Member is one of the models to merge.
type Member struct {
	// Name is the model's name in Triton.
	Name string
	// Dir is the model's directory, with config.pbtxt and version directories; empty for a graph without one, which can be analysed
	// but not emitted.
	Dir string
	// Version is the version directory below Dir whose graph is taken.
	Version string
	// Graph is the path of the ONNX file.
	Graph string
}

// Find makes a member of a path: an ONNX file, or a model's directory, of which the latest version with a model.onnx is taken.
func Find(at string) (Member, error) {
	info, err := os.Stat(at)
	if err != nil {
		return Member{}, err
	}
	at = filepath.Clean(at)
	if !info.IsDir() {
		name := filepath.Base(at)
		return Member{Name: name[:len(name)-len(filepath.Ext(name))], Graph: at}, nil
	}
	root, err := modeldir.Root(at)
	if err != nil {
		return Member{}, err
	}
	defer root.Close() //nolint:errcheck // only read from
	entries, err := modeldir.ReadDir(root, ".")
	if err != nil {
		return Member{}, err
	}
	latest := int64(0)
	for _, e := range entries {
		v, err := strconv.ParseInt(e.Name(), 10, 64)
		if err != nil || v <= latest {
			continue
		}
		if _, err := os.Stat(filepath.Join(at, e.Name(), GraphFile)); err == nil {
			latest = v
		}
	}
	if latest == 0 {
		return Member{}, fmt.Errorf("%s: no version directory with a %s", at, GraphFile)
	}
	version := strconv.FormatInt(latest, 10)
	return Member{Name: filepath.Base(at), Dir: at, Version: version, Graph: filepath.Join(at, version, GraphFile)}, nil
}

// graph is a member read and understood.
type graph struct {
	Member
	// root is the model's directory; nil for a graph without one.
	root  *os.Root
	model *onnx.Model
	facts *rows.Analysis
	// batchError is why rows could not be followed at all; facts is nil then.
	batchError error
	order      []*onnx.Node
	producer   map[string]*onnx.Node
	// weights identifies the content of each initializer.
	weights map[string]Digest
	// values identifies what each value is a function of.
	values map[string]Digest
	depth  map[*onnx.Node]int
}

// open indexes a member and orders its nodes. Weights are not read.
func open(m Member) (_ *graph, err error) {
	g := &graph{Member: m, producer: map[string]*onnx.Node{}, depth: map[*onnx.Node]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if m.Dir == "" {
		g.model, err = onnx.Open(m.Graph)
	} else if g.root, err = modeldir.Root(m.Dir); err == nil {
		g.model, err = onnx.OpenIn(g.root, path.Join(m.Version, GraphFile))
	}
	if err != nil {
		return nil, err
	}
	lift(g.model.Graph)
	if g.order, err = g.model.Graph.Order(nil); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Graph, err)
	}
	for _, n := range g.order {
		for _, name := range n.Uses() {
			if p := g.producer[name]; p != nil {
				g.depth[n] = max(g.depth[n], g.depth[p]+1)
			}
		}
		for _, name := range n.Outputs {
			g.producer[name] = n
		}
	}
	g.facts, g.batchError = rows.Analyze(g.model)
	return g, nil
}

// lift makes initializers of the tensors in Constant nodes, where some exporters put the weights: they are counted, shared and stacked alike.
func lift(g *onnx.Graph) {
	g.Nodes = slices.DeleteFunc(g.Nodes, func(n *onnx.Node) bool {
		value := n.Attribute("value")
		if n.Op != "Constant" || n.Domain != "" || value == nil || value.Tensor == nil || len(n.Attributes) != 1 || len(n.Outputs) != 1 || g.Initializer(n.Outputs[0]) != nil {
			return false
		}
		t := *value.Tensor
		t.Name = n.Outputs[0]
		g.AddInitializer(&t)
		return true
	})
}

// cause is the node that nothing could be proved of and that the value depends on, the first of the graph's order; nil where there is none.
func (g *graph) cause(value string) *rows.Refusal {
	behind := map[string]bool{value: true}
	var first *rows.Refusal
	for _, n := range slices.Backward(g.order) {
		if !slices.ContainsFunc(n.Outputs, func(out string) bool { return behind[out] }) {
			continue
		}
		for _, in := range n.Uses() {
			behind[in] = true
		}
		if g.facts == nil {
			continue
		}
		if r, refused := g.facts.Refused[n]; refused && !r.Follows {
			first = &r
		}
	}
	return first
}

func (g *graph) close() error {
	var errs []error
	if g.model != nil {
		errs = append(errs, g.model.Close())
	}
	if g.root != nil {
		errs = append(errs, g.root.Close())
	}
	return errors.Join(errs...)
}

// shareable says whether the node may run on rows of several members at once, and if not, why.
func (g *graph) shareable(n *onnx.Node) (ok bool, why string) {
	if g.facts == nil {
		return false, g.batchError.Error()
	}
	r, refused := g.facts.Refused[n]
	return !refused, r.Reason
}

func (g *graph) fact(value string) rows.Fact {
	if g.facts == nil {
		return rows.Fact{}
	}
	return g.facts.Facts[value]
}

// weightBytes is the size of all initializers.
func (g *graph) weightBytes() int64 {
	total := int64(0)
	for _, t := range g.model.Graph.Initializers {
		total += t.Bytes()
	}
	return total
}

// bytesOf is the size of the initializers that the nodes use, each once.
func (g *graph) bytesOf(nodes []*onnx.Node) int64 {
	seen := map[string]bool{}
	total := int64(0)
	for _, n := range nodes {
		for _, name := range n.Uses() {
			if t := g.model.Graph.Initializer(name); t != nil && !seen[name] {
				seen[name] = true
				total += t.Bytes()
			}
		}
	}
	return total
}

// inOrder is the set of nodes in the graph's order.
func (g *graph) inOrder(set map[*onnx.Node]bool) []*onnx.Node {
	return slices.DeleteFunc(slices.Clone(g.order), func(n *onnx.Node) bool { return !set[n] })
}

func nameOf(n *onnx.Node) string {
	if n.Name == "" && len(n.Outputs) > 0 {
		return n.Outputs[0]
	}
	return n.Name
}
