// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"strings"

	"github.com/protocolbuffers/txtpbfmt/ast"
)

// line is the line of a field of the configuration, by the way to it: names of
// fields, and after the name of a repeated one the number of the element. Where the
// last steps do not exist, it is the line of the last one that does; 0 where the
// first is absent.
func (v *validator) line(way ...any) int {
	nodes, line := v.nodes, 0
	for i := 0; i < len(way); i++ {
		name, element := way[i].(string), 0
		if i+1 < len(way) {
			if n, isNumber := way[i+1].(int); isNumber {
				element = n
				i++
			}
		}
		found := elements(nodes, name)
		if element >= len(found) {
			return line
		}
		nodes, line = found[element].children, found[element].line
	}
	return line
}

// parameterLine is the line of a parameter by its key, else of the first.
func (v *validator) parameterLine(key string) int {
	for i, entry := range elements(v.nodes, "parameters") {
		if keyOf(entry.children) == key {
			return v.line("parameters", i)
		}
	}
	return v.line("parameters")
}

// keyOf is the key of an entry of a map.
func keyOf(entry []*ast.Node) string {
	for _, n := range entry {
		if n.Name == "key" && len(n.Values) == 1 {
			return strings.Trim(n.Values[0].Value, `"'`)
		}
	}
	return ""
}

// element is one message of a field, or the field itself where it is a value.
type element struct {
	children []*ast.Node
	line     int
}

// elements are the messages of a field in their order, whether each has its own
// field or they stand in a list.
func elements(nodes []*ast.Node, name string) []element {
	var all []element
	for _, n := range nodes {
		switch {
		case n.Name != name:
		case n.ChildrenAsList:
			for _, message := range n.Children {
				if !message.IsCommentOnly() || len(message.Children) > 0 {
					line := nodeLine(message)
					if message.Start.Line == 0 {
						line = nodeLine(n)
					}
					all = append(all, element{message.Children, line})
				}
			}
		default:
			all = append(all, element{n.Children, nodeLine(n)})
		}
	}
	return all
}

// nodeLine is the line of the node itself: its start counts the comments and
// blank lines above it.
func nodeLine(n *ast.Node) int { return int(n.Start.Line) + len(n.PreComments) }
