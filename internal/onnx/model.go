// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

// Model is the index of an ONNX file: everything but the elements of its tensors. Its methods that read elements are for one goroutine
// at a time.
type Model struct {
	// Path is the file as it was given to Open; external data is looked for in its directory.
	Path string
	// IR is the version of the file format.
	IR                        int64
	Producer, ProducerVersion string
	Domain                    string
	Version                   int64
	// Opsets is the version of each operator set that the nodes use, by domain; "" is ONNX's own.
	Opsets    map[string]int64
	Graph     *Graph
	Functions []*Function
	Metadata  map[string]string
	// Training says that the file carries training information, which the index leaves out.
	Training bool

	weights weights
}

// Graph is a list of nodes with inputs, outputs and weights: the model's own, or one that an attribute of a node holds (the branches
// of If, the bodies of Loop and Scan).
type Graph struct {
	Name  string
	Nodes []*Node
	// Inputs are as written; old exporters list initializers there too. See Feeds.
	Inputs, Outputs []*Value
	// Values are the types of intermediate values that the exporter wrote down, often none.
	Values       []*Value
	Initializers []*Tensor
	// SparseInitializers counts the initializers in a sparse format; their contents are not indexed.
	SparseInitializers int
	// Quantization counts the quantisation annotations, which are not indexed.
	Quantization int

	initializers map[string]*Tensor
}

// Initializer is the graph's own initializer of that name, nil if there is none.
func (g *Graph) Initializer(name string) *Tensor { return g.initializers[name] }

// AddInitializer appends an initializer to a graph that is being built. The name must be new.
func (g *Graph) AddInitializer(t *Tensor) {
	if g.initializers == nil {
		g.initializers = map[string]*Tensor{}
	}
	g.initializers[t.Name] = t
	g.Initializers = append(g.Initializers, t)
}

// Feeds are the inputs that a caller has to give: those that are not initializers.
func (g *Graph) Feeds() []*Value {
	var feeds []*Value
	for _, v := range g.Inputs {
		if g.initializers[v.Name] == nil {
			feeds = append(feeds, v)
		}
	}
	return feeds
}

// Node is one use of an operator. An empty name among inputs or outputs is an optional one that is left out.
type Node struct {
	Name, Op, Domain, Overload string
	Inputs, Outputs            []string
	Attributes                 []*Attribute
}

// Attribute is the node's attribute of that name, nil if it has none.
func (n *Node) Attribute(name string) *Attribute {
	for _, a := range n.Attributes {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// Int is the integer attribute of that name, or otherwise if the node has none.
func (n *Node) Int(name string, otherwise int64) int64 {
	if a := n.Attribute(name); a != nil && a.Kind == KindInt {
		return a.Int
	}
	return otherwise
}

// Float is the floating-point attribute of that name, or otherwise if the node has none.
func (n *Node) Float(name string, otherwise float32) float32 {
	if a := n.Attribute(name); a != nil && a.Kind == KindFloat {
		return a.Float
	}
	return otherwise
}

// Ints is the attribute of that name that is a list of integers, nil if the node has none.
func (n *Node) Ints(name string) []int64 {
	if a := n.Attribute(name); a != nil && a.Kind == KindInts {
		return a.Ints
	}
	return nil
}

// Text is the string attribute of that name, or otherwise if the node has none.
func (n *Node) Text(name, otherwise string) string {
	if a := n.Attribute(name); a != nil && a.Kind == KindString {
		return string(a.String)
	}
	return otherwise
}

// AttributeKind says which field of an attribute holds its value, with the numbers of AttributeProto.AttributeType.
type AttributeKind int32

// The kinds of attributes.
const (
	KindUndefined     AttributeKind = 0
	KindFloat         AttributeKind = 1
	KindInt           AttributeKind = 2
	KindString        AttributeKind = 3
	KindTensor        AttributeKind = 4
	KindGraph         AttributeKind = 5
	KindFloats        AttributeKind = 6
	KindInts          AttributeKind = 7
	KindStrings       AttributeKind = 8
	KindTensors       AttributeKind = 9
	KindGraphs        AttributeKind = 10
	KindSparseTensor  AttributeKind = 11
	KindSparseTensors AttributeKind = 12
	KindType          AttributeKind = 13
	KindTypes         AttributeKind = 14
)

// Attribute is a constant parameter of a node. Kind says which field holds it; sparse tensors have a kind and no value here.
type Attribute struct {
	Name string
	// RefName is set inside a function: the value is that of the function's attribute of this name.
	RefName string
	Kind    AttributeKind

	Float   float32
	Int     int64
	String  []byte
	Tensor  *Tensor
	Graph   *Graph
	Floats  []float32
	Ints    []int64
	Strings [][]byte
	Tensors []*Tensor
	Graphs  []*Graph
	Types   []*Type
}

// Function is an operator that the model defines by nodes.
type Function struct {
	Name, Domain, Overload string
	Inputs, Outputs        []string
	// AttributeNames have no default, Attributes are the defaults of the others.
	AttributeNames []string
	Attributes     []*Attribute
	Nodes          []*Node
	Opsets         map[string]int64
}

// Value is a named value of a graph with its type.
type Value struct {
	Name string
	Type Type
}

// TypeKind says what a value is.
type TypeKind int

// The kinds of values. UnknownKind is a value whose type the file leaves out.
const (
	UnknownKind TypeKind = iota
	TensorKind
	SparseTensorKind
	SequenceKind
	MapKind
	OptionalKind
	OpaqueKind
)

// Type is the type of a value: for tensors the element type and the shape as far as the file tells it.
type Type struct {
	Kind TypeKind
	// Elem is the element type of a tensor, the key type of a map.
	Elem DataType
	// HasShape tells a scalar (a shape without dimensions) from a tensor of unknown rank.
	HasShape bool
	Dims     []Dim
	// Inner is the element of a sequence or an optional, the value of a map.
	Inner *Type
}

// Dim is one dimension: a size, or the name of a symbol, or neither.
type Dim struct {
	// Size is -1 where it is not fixed.
	Size int64
	Name string
}
