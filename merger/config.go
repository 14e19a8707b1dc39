// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/protocolbuffers/txtpbfmt/ast"
	"github.com/protocolbuffers/txtpbfmt/parser"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
)

// tritonTypes are Triton's names of element types.
var tritonTypes = map[onnx.DataType]string{
	onnx.Bool: "TYPE_BOOL", onnx.Uint8: "TYPE_UINT8", onnx.Uint16: "TYPE_UINT16", onnx.Uint32: "TYPE_UINT32", onnx.Uint64: "TYPE_UINT64",
	onnx.Int8: "TYPE_INT8", onnx.Int16: "TYPE_INT16", onnx.Int32: "TYPE_INT32", onnx.Int64: "TYPE_INT64", onnx.Float16: "TYPE_FP16",
	onnx.Float: "TYPE_FP32", onnx.Double: "TYPE_FP64", onnx.String: "TYPE_STRING", onnx.BFloat16: "TYPE_BF16",
}

// config is a member's config.pbtxt, as far as a merge has to know it.
type config struct {
	nodes    []*ast.Node
	maxBatch int
}

// own are fields of a configuration that say something of the member's own tensors, names or scheduling: a part gets its own or none.
var own = []string{
	"name", "input", "output", "dynamic_batching", "default_model_filename", "version_policy", "model_warmup", "max_batch_size", "cc_model_filenames",
	"metric_tags", "response_cache",
}

// unmergeable are fields of models whose requests cannot share a batch, with the reason.
var unmergeable = map[string]string{
	"sequence_batching": "its requests belong to sequences", "ensemble_scheduling": "it is an ensemble",
	"batch_input": "Triton derives tensors from its batch", "batch_output": "Triton derives tensors from its batch",
}

// readConfig reads the configuration of a member's directory.
func readConfig(dir string) (c config, err error) {
	path := filepath.Join(dir, "config.pbtxt")
	text, err := modeldir.ReadFile(dir, "config.pbtxt")
	if err != nil {
		return config{}, err
	}
	defer func() { // the parser is written for files that parse
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: unreadable as text format: %v", path, r)
		}
	}()
	if c.nodes, err = parser.Parse(text); err != nil {
		return config{}, fmt.Errorf("%s: %w", path, err)
	}
	for _, n := range c.nodes {
		if why := unmergeable[n.Name]; why != "" {
			return config{}, fmt.Errorf("%s: %s: %s", path, n.Name, why)
		}
		switch {
		case n.Name == "max_batch_size" && len(n.Values) == 1:
			if c.maxBatch, err = strconv.Atoi(n.Values[0].Value); err != nil {
				return config{}, fmt.Errorf("%s: max_batch_size: %w", path, err)
			}
		case n.Name == "model_transaction_policy" && strings.Contains(parser.Pretty([]*ast.Node{n}, 0), "true"):
			return config{}, fmt.Errorf("%s: a decoupled model's answers cannot be shared out", path)
		}
	}
	if c.maxBatch <= 0 {
		return config{}, fmt.Errorf("%s: max_batch_size is 0: its tensors have no batch dimension", path)
	}
	return c, nil
}

// serving are the fields that say how the model is run, as text.
func (c config) serving() []string {
	var out []string
	for _, n := range c.nodes {
		if slices.Contains([]string{"backend", "platform", "runtime", "parameters", "optimization", "model_operations"}, n.Name) {
			out = append(out, parser.Pretty([]*ast.Node{{Name: n.Name, Values: n.Values, Children: n.Children, SkipColon: n.SkipColon}}, 0))
		}
	}
	slices.Sort(out)
	return out
}

// of is the configuration of a part: the member's backend, instances and parameters with other tensors.
func (c config) of(p Part, maxBatch int, comment string) ([]byte, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\nname: %q\nmax_batch_size: %d\n", comment, p.Name, maxBatch)
	for _, io := range p.Inputs {
		if err := io.declare(&b, "input"); err != nil {
			return nil, err
		}
	}
	for _, io := range p.Outputs {
		if err := io.declare(&b, "output"); err != nil {
			return nil, err
		}
	}
	kept := slices.DeleteFunc(slices.Clone(c.nodes), func(n *ast.Node) bool { return n.Name == "" || slices.Contains(own, n.Name) })
	b.WriteString(parser.Pretty(kept, 0))
	return []byte(b.String()), nil
}

func (io IO) declare(b *strings.Builder, field string) error {
	switch {
	case tritonTypes[io.Type] == "":
		return fmt.Errorf("tensor %q is of type %s, which Triton does not know", io.Name, io.Type)
	case len(io.Dims) == 0:
		return fmt.Errorf("tensor %q has no dimension besides the batch, which Triton cannot declare", io.Name)
	}
	var dims []string
	for _, d := range io.Dims {
		dims = append(dims, strconv.FormatInt(d, 10))
	}
	fmt.Fprintf(b, "%s { name: %q data_type: %s dims: [ %s ] }\n", field, io.Name, tritonTypes[io.Type], strings.Join(dims, ", "))
	return nil
}
