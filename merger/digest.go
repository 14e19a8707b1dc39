// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/conch-serving/conch/internal/onnx"
)

// Digest identifies contents: BLAKE3, which hashes weights about as fast as they can be read. Tensors of hostile models cannot be made
// to collide.
type Digest [32]byte

// String is the first eight bytes in hex.
func (d Digest) String() string { return hex.EncodeToString(d[:8]) }

// hasher writes values that cannot run into each other: each with its length or of fixed size.
type hasher struct{ h hash.Hash }

func newHasher(kind string) hasher {
	h := hasher{blake3.New()}
	h.text(kind)
	return h
}

func (h hasher) number(v int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(v)) //nolint:gosec // two's complement
	_, _ = h.h.Write(b[:])                         // a hash never fails
}

func (h hasher) text(s string) {
	h.number(int64(len(s)))
	_, _ = io.WriteString(h.h, s) // a hash never fails
}

func (h hasher) digest(d Digest) { _, _ = h.h.Write(d[:]) } // a hash never fails

func (h hasher) sum() (d Digest) {
	h.h.Sum(d[:0])
	return d
}

// tensor hashes a tensor: type, dimensions, elements.
func (g *graph) tensor(t *onnx.Tensor, buffer []byte) (Digest, error) {
	h := newHasher("tensor")
	h.number(int64(t.Type))
	h.number(int64(len(t.Dims)))
	for _, d := range t.Dims {
		h.number(d)
	}
	if t.Type == onnx.String {
		all, err := g.model.Strings(t)
		for _, s := range all {
			h.text(string(s))
		}
		return h.sum(), err
	}
	r, err := g.model.Reader(t)
	if err != nil {
		return Digest{}, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{h.h}, struct{ io.Reader }{r}, buffer)
	if err == nil && n != t.Bytes() {
		err = fmt.Errorf("%s: tensor %q has %d bytes of data, its type and dimensions want %d", g.Graph, t.Name, n, t.Bytes())
	}
	return h.sum(), err
}

// hashWeights reads every initializer once. progress is called after each.
func (g *graph) hashWeights(ctx context.Context, progress func(bytes int64)) error {
	g.weights = map[string]Digest{}
	buffer := make([]byte, 1<<20)
	for _, t := range g.model.Graph.Initializers {
		if err := ctx.Err(); err != nil {
			return err
		}
		d, err := g.tensor(t, buffer)
		if err != nil {
			return err
		}
		g.weights[t.Name] = d
		progress(t.Bytes())
	}
	return nil
}

// hashValues gives every value the Merkle hash of what computes it. What may not be shared gets one that no other member has.
func (g *graph) hashValues() error {
	g.values = map[string]Digest{}
	for _, v := range g.model.Graph.Feeds() {
		h := newHasher("feed")
		h.text(v.Name)
		h.number(int64(v.Type.Elem))
		h.number(int64(len(v.Type.Dims)))
		for _, d := range v.Type.Dims {
			h.number(d.Size)
		}
		g.values[v.Name] = h.sum()
	}
	for name, d := range g.weights {
		g.values[name] = d
	}
	for _, n := range g.order {
		if err := g.hashNode(n); err != nil {
			return err
		}
	}
	return nil
}

func (g *graph) hashNode(n *onnx.Node) error {
	ok, _ := g.shareable(n)
	if ok && n.Op == "Identity" {
		g.values[n.Outputs[0]] = g.values[n.Inputs[0]]
		return nil
	}
	h := newHasher("node")
	if !ok {
		h.text("private")
		h.text(g.Name)
	}
	if err := g.signature(h, n, true); err != nil {
		return err
	}
	h.number(int64(len(n.Inputs)))
	for _, name := range n.Inputs {
		h.digest(g.values[name]) // of no input: zeros
	}
	whole := h.sum()
	for i, name := range n.Outputs {
		if name == "" {
			continue
		}
		h := newHasher("output")
		h.digest(whole)
		h.number(int64(i))
		g.values[name] = h.sum()
	}
	return nil
}

// signature writes what the node does, its inputs left out: operator, version, attributes in the order of their names. With contents,
// constants in attributes count with their elements.
func (g *graph) signature(h hasher, n *onnx.Node, contents bool) error {
	h.text(n.Op)
	h.text(n.Domain)
	h.text(n.Overload)
	h.number(g.model.Opsets[n.Domain])
	attributes := slices.SortedFunc(slices.Values(n.Attributes), func(a, b *onnx.Attribute) int { return strings.Compare(a.Name, b.Name) })
	h.number(int64(len(attributes)))
	for _, a := range attributes {
		h.text(a.Name)
		h.text(a.RefName)
		h.number(int64(a.Kind))
		h.number(a.Int)
		h.number(int64(math.Float32bits(a.Float)))
		h.text(string(a.String))
		h.number(int64(len(a.Ints)))
		for _, v := range a.Ints {
			h.number(v)
		}
		h.number(int64(len(a.Floats)))
		for _, v := range a.Floats {
			h.number(int64(math.Float32bits(v)))
		}
		h.number(int64(len(a.Strings)))
		for _, s := range a.Strings {
			h.text(string(s))
		}
		for _, t := range append(slices.Clone(a.Tensors), a.Tensor) {
			if t == nil {
				continue
			}
			if !contents {
				h.number(int64(t.Type))
				continue
			}
			d, err := g.tensor(t, make([]byte, 32<<10))
			if err != nil {
				return err
			}
			h.digest(d)
		}
		for _, inner := range append(slices.Clone(a.Graphs), a.Graph) {
			if inner == nil {
				continue
			}
			if err := g.subgraph(h, inner, contents); err != nil {
				return err
			}
		}
	}
	return nil
}

// subgraph writes a graph that an attribute holds, by the names in it. A node with one has no rule in package rows and is never shared:
// this is for the content of members and the structure of graphs.
func (g *graph) subgraph(h hasher, inner *onnx.Graph, contents bool) error {
	h.text("graph")
	for _, t := range inner.Initializers {
		h.text(t.Name)
		if !contents {
			continue
		}
		d, err := g.tensor(t, make([]byte, 32<<10))
		if err != nil {
			return err
		}
		h.digest(d)
	}
	for _, n := range inner.Nodes {
		if err := g.signature(h, n, contents); err != nil {
			return err
		}
		for _, name := range slices.Concat(n.Inputs, []string{""}, n.Outputs) {
			h.text(name)
		}
	}
	for _, v := range slices.Concat(inner.Inputs, inner.Outputs) {
		h.text(v.Name)
	}
	return nil
}
