// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
)

// block is a part of a page that is written from figures: <!-- table NAME --> ... <!-- end -->.
var block = regexp.MustCompile(`(?s)<!-- table ([a-z]+) -->\n.*?<!-- end -->`)

// tables are the blocks by name.
var tables = map[string]func(byName) string{
	"ablation": ablationTable, "unseen": unseenTable, "judges": judgesTable, "pipelines": pipelinesTable, "live": liveTable, "overlap": overlapTable, "mixes": mixesTable, "hop": hopTable, "owners": ownersTable, "latency": latencyTable("proxy"), "throughput": throughputTable("proxy"),
	"reallatency": latencyTable("proxy.real"), "realthroughput": throughputTable("proxy.real"),
	"held": heldTable, "past": pastTable, "elastic": elasticTable, "changes": changeTable, "foreseen": foreseenTable, "losses": lossTable, "gains": gainTable, "published": publishedTable,
}

// byName finds figures by name.
type byName map[string]figure.Figure

func byNameOf(reports []*figure.Report) byName {
	all := byName{}
	for _, r := range reports {
		for _, f := range r.Figures {
			all[f.Name] = f
		}
	}
	return all
}

// rewriteBlocks writes the blocks of a page anew.
func rewriteBlocks(page string, reports []*figure.Report) (string, error) {
	all := byNameOf(reports)
	var unknown error
	page = block.ReplaceAllStringFunc(page, func(old string) string {
		name := block.FindStringSubmatch(old)[1]
		write, ok := tables[name]
		if !ok {
			unknown = fmt.Errorf("no table is called %q", name)
			return old
		}
		return "<!-- table " + name + " -->\n" + write(all) + "<!-- end -->"
	})
	return page, unknown
}

// cell is a figure with its spread; a dash where it was not measured.
func (f byName) cell(name string, decimals int) string {
	v, ok := f[name]
	if !ok {
		return "–"
	}
	text := fmt.Sprintf("%.*f", decimals, v.Value)
	if v.Runs >= figure.SpreadRuns {
		text += fmt.Sprintf(" (%.*f to %.*f)", decimals, v.Low, decimals, v.High)
	}
	return text
}

// write makes a table of rows and columns; a row of which nothing was measured is left out.
func write(head []string, rows [][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|---|%s\n", strings.Join(head, " | "), strings.Repeat("---:|", len(head)-1))
	for _, row := range rows {
		if strings.Trim(strings.Join(row[1:], ""), "–") != "" {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	return b.String()
}

func liveTable(f byName) string {
	var rows [][]string
	add := func(title, name string, decimals int) {
		rows = append(rows, []string{title, f.cell("live.1on4."+name, decimals), f.cell("live.8on4."+name, decimals)})
	}
	for _, kind := range [][2]string{{"dynamic", "dynamic"}, {"batch", "batch"}, {"preferred", "preferred"}, {"timeouts", "queue_timeout"}, {"dedicated", "dedicated"}, {"rate limiter", "rate_limiter"}, {"affine", "affine"}} {
		add("Triton, a server per GPU, "+kind[0]+", screened", "triton."+kind[1]+".screened", 0)
		add("Triton, a server per GPU, "+kind[0]+", req/s", "triton."+kind[1]+".goodput", 0)
	}
	for _, kind := range [][2]string{{"dynamic", "dynamic"}, {"free", "free"}, {"free, batch", "free_batch"}, {"free, preferred", "free_preferred"}, {"free, rate limiter", "free_limiter"}, {"free, copies", "free_copies"}, {"batch", "batch"}, {"preferred", "preferred"}, {"rate limiter", "limiter"}, {"copies", "copies"}} {
		add("Triton, one server for all GPUs, "+kind[0]+", screened", "triton.node_"+kind[1]+".screened", 0)
	}
	add("**Triton, the best with a server per GPU**", "triton.each.goodput", 0)
	add("**Triton, the best with one server for all GPUs**", "triton.node.goodput", 0)
	add("Conch, pooling alone: `timeout`", "conch.timeout.goodput", 0)
	add("Conch, pooling alone: `eager`, drop policy `none`", "conch.eager_none.goodput", 0)
	add("Conch, with drops: `eager`, `window`", "conch.eager.goodput", 0)
	add("Conch, with drops: `eager`, `thrift`", "conch.eager_thrift.goodput", 0)
	add("**Conch**", "conch.goodput", 0)
	add("Conch, attached at one address, an execution for each GPU", "conch.attached_at_once.goodput", 0)
	add("Conch, attached at one address, an execution for each GPU, screened", "conch.attached_at_once.screened", 0)
	add("Conch over the best of Triton (`goodput_ratio`)", "goodput_ratio", 2)
	add("over the best of one server for all GPUs (`to_node`)", "to_node", 2)
	add("over the best of a server per GPU (`to_each`)", "to_each", 2)
	add("of which pooling (`pooling_part`)", "pooling_part", 2)
	add("drops (`drop_part`)", "drop_part", 2)
	add("deferral (`deferral_part`)", "deferral_part", 2)
	add("Conch attached, over that server's best (`attached_to_node`)", "attached_to_node", 2)
	return write([]string{"", "one model on four GPUs (`live.1on4`)", "eight models on four GPUs (`live.8on4`)"}, rows)
}

// calls are the kinds of calls that proxy measures.
var calls = [...][2]string{{"gRPC, 1 KB", "grpc.1KB"}, {"gRPC, 600 KB", "grpc.600KB"}, {"HTTP, 1 KB", "http.1KB"}, {"HTTP, 600 KB", "http.600KB"}}

// callsColumn is one of a table of calls: the end of its figures' names.
type callsColumn struct{ title, figure string }

func latencyTable(prefix string) func(byName) string {
	return callsTable("one caller, median, us", prefix, ".c1.", 0, []callsColumn{
		{"straight", "straight_p50_us"}, {"forwarder adds", "forwarder_added_p50_us"}, {"libraries add", "libraries_added_p50_us"}, {"nginx adds", "nginx_added_p50_us"},
		{"HAProxy adds", "haproxy_added_p50_us"}, {"Conch attached adds", "attached_added_p50_us"}, {"Conch adds", "added_p50_us"},
	})
}

func throughputTable(prefix string) func(byName) string {
	return callsTable("64 callers, of the calls per second straight", prefix, ".c64.", 2, []callsColumn{
		{"straight, req/s", "straight_per_second"}, {"forwarder", "forwarder_throughput_ratio"}, {"libraries", "libraries_throughput_ratio"}, {"nginx", "nginx_throughput_ratio"},
		{"HAProxy", "haproxy_throughput_ratio"}, {"Conch attached", "attached_throughput_ratio"}, {"Conch", "throughput_ratio"},
	})
}

// callsTable has a row for each kind of call. The first column, of the call straight to the server, has no decimals.
func callsTable(title, prefix, callers string, decimals int, columns []callsColumn) func(byName) string {
	return func(f byName) string {
		head := []string{title}
		for _, c := range columns {
			head = append(head, c.title)
		}
		var rows [][]string
		for _, call := range calls {
			row := []string{call[0]}
			for i, c := range columns {
				row = append(row, f.cell(prefix+"."+call[1]+callers+c.figure, decimals*min(i, 1)))
			}
			rows = append(rows, row)
		}
		return write(head, rows)
	}
}
