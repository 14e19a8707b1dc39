// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package modelcases

import "strings"

// Refused are models that a Triton refuses, or hangs on.
func Refused() []Case {
	ensemble := func(rest string) string { return "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + rest }
	step := func(model, inputs, outputs string) string {
		return "  step { model_name: \"" + model + "\" model_version: -1 " + inputs + " " + outputs + " }\n"
	}
	steps := func(all ...string) string {
		return "ensemble_scheduling {\n" + strings.Join(all, "") + "}\n"
	}
	const a, b = "input_map { key: \"A\" value: \"A\" }", "output_map { key: \"B\" value: \"B\" }"
	return []Case{
		// The text.
		{Name: "syntax", Config: head + "input {{\n" + out, Want: "/config.pbtxt:3: invalid field name: {"},
		{Name: "field_misspelt", Config: whole + "max_batchsize: 8\n", Want: "/config.pbtxt:5: unknown field: max_batchsize"},
		{Name: "field_of_a_tensor_misspelt", Config: head + "input {\n  nam: \"A\"\n  data_type: TYPE_FP32\n  dims: 4\n}\n" + out, Want: "/config.pbtxt:4: unknown field: nam"},
		{Name: "batch_in_quotes", Config: "backend: \"python\"\nmax_batch_size: \"8\"\n" + in + out, Want: "/config.pbtxt:2: invalid value for int32 type: \"8\""},
		{Name: "batch_with_a_fraction", Config: "backend: \"python\"\nmax_batch_size: 8.5\n" + in + out, Want: "/config.pbtxt:2: invalid value for int32 type: 8.5"},
		{Name: "batch_beyond_32_bits", Config: "backend: \"python\"\nmax_batch_size: 99999999999\n" + in + out, Want: "/config.pbtxt:2: invalid value for int32 type: 99999999999"},
		{Name: "batch_twice", Config: whole + "max_batch_size: 4\n", Want: "/config.pbtxt:5: non-repeated field \"max_batch_size\" is repeated"},
		{Name: "two_schedulers", Config: whole + "dynamic_batching { }\nsequence_batching { }\n", Want: "/config.pbtxt:6: error parsing \"sequence_batching\", oneof inference.ModelConfig.scheduling_choice is already set"},
		{Name: "brace_not_closed", Config: whole + "instance_group [ { count: 1 }\n", Want: "/config.pbtxt:5: the text ends inside a message or a value"},
		{Name: "brace_too_many", Config: whole + "}\n", Want: "/config.pbtxt:5: invalid field name: }"},
		{Name: "quote_not_closed", Config: "backend: \"python\nmax_batch_size: 8\n" + in + out, Want: "/config.pbtxt:1: invalid character '\\n' in string"},
		{Name: "json", Config: "{\n  \"backend\": \"python\",\n  \"max_batch_size\": 8\n}\n", Want: "/config.pbtxt:1: invalid field name: {"},
		{Name: "equals_sign", Config: "backend = \"python\"\nmax_batch_size: 8\n" + in + out, Want: "/config.pbtxt:1: missing field separator :"},
		{Name: "comment_of_c", Config: "// a python model\n" + whole, Want: "/config.pbtxt:1: invalid field name: //"},
		{Name: "type_unknown", Config: head + "input { name: \"A\" data_type: TYPE_FP31 dims: 4 }\n" + out, Want: "/config.pbtxt:3: invalid value for enum type: TYPE_FP31"},
		{Name: "type_not_triton", Config: head + in + "output { name: \"B\" data_type: float32 dims: 4 }\n", Want: "/config.pbtxt:4: invalid value for enum type: float32"},
		{Name: "boolean_yes", Config: whole + "model_transaction_policy { decoupled: yes }\n", Want: "/config.pbtxt:5: invalid value for bool type: yes"},
		{Name: "dims_trailing_comma", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: [ 4, ] }\n" + out, Want: "/config.pbtxt:3: invalid scalar value: ]"},
		{Name: "dims_in_parentheses", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: (4) }\n" + out, Want: "/config.pbtxt:3: invalid scalar value: ("},
		{Name: "enum_in_quotes", Config: whole + "instance_group { kind: \"KIND_CPU\" }\n", Want: "/config.pbtxt:5: invalid value for enum type: \"KIND_CPU\""},
		{Name: "map_without_key", Config: whole + "parameters { slo_ms: \"20\" }\n", Want: "/config.pbtxt:5: unknown map entry field \"slo_ms\""},
		{Name: "parameter_is_a_number", Config: whole + "parameters { key: \"threads\" value: 4 }\n", Want: "/config.pbtxt:5: unexpected token: 4"},
		{Name: "nul_byte", Config: whole + "\x00", Want: "/config.pbtxt:5: invalid field name:"},
		{Name: "byte_order_mark", Config: "\xef\xbb\xbf" + whole, Want: "/config.pbtxt:1: invalid field name:"},
		{Name: "configuration_is_a_directory", Files: map[string]string{"config.pbtxt/": "", "1/model.py": Python}, Want: "/config.pbtxt: is a directory", Kills: true},
		{Name: "configuration_empty", Config: "", Files: map[string]string{"config.pbtxt": "", "1/weights.bin": ""}, Want: "/config.pbtxt: neither backend nor platform is set, and no file name tells; write backend: \"onnxruntime\", \"python\" or another"},

		// What the model is.
		{Name: "no_backend", Config: "max_batch_size: 8\n" + in + out, Files: map[string]string{"1/weights.bin": ""}, Want: "/config.pbtxt: neither backend nor platform is set, and no file name tells; write backend: \"onnxruntime\", \"python\" or another"},
		{Name: "no_configuration", Want: "/config.pbtxt: no configuration; Triton runs without auto-completion here: write one with backend, max_batch_size, input and output"},
		{Name: "other_name", Config: head + "name: \"x\"\n" + in + out, Want: "/config.pbtxt:3: name is \"x\", and the directory is \"other_name\": Triton wants them equal (or no name)"},
		{Name: "name with a blank", Config: whole, Want: ": the python backend passes the directory's name to a shell", Hangs: true},
		{Name: "name_(of_a_shell)", Config: whole, Want: ": the python backend passes the directory's name to a shell", Hangs: true},
		{Name: "platform_of_a_backend", Config: "platform: \"python\"\nmax_batch_size: 8\n" + in + out, Want: "/config.pbtxt:1: platform \"python\" is none of Triton's; write backend: \"python\" if that is the backend's name"},
		{Name: "empty_directory", Files: map[string]string{}, Want: "/config.pbtxt: no configuration; Triton runs without auto-completion here: write one with backend, max_batch_size, input and output"},
		{Name: "batch_negative", Config: "backend: \"python\"\nmax_batch_size: -1\n" + in + out, Want: "/config.pbtxt:2: max_batch_size is -1: write 0 for no batch dimension, or the largest batch"},

		// Tensors.
		{Name: "reshape_changes_elements", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 3 ] } }\n" + out, Want: "/config.pbtxt:3: input \"A\" has dims [4] and cannot be reshaped to [3]: the numbers of elements differ, before, between or after the sizes that vary"},
		{Name: "reshape_loses_a_free_size", Config: head + in + "output { name: \"B\" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4 ] } }\n", Want: "/config.pbtxt:4: output \"B\" has dims [-1 4] and cannot be reshaped to [4]: the numbers of elements differ, before, between or after the sizes that vary"},
		{Name: "reshape_to_zero", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 0 ] } }\n" + out, Want: "/config.pbtxt:3: input \"A\" has dims [4] and cannot be reshaped to [0]: the numbers of elements differ, before, between or after the sizes that vary"},
		{Name: "scalar_without_a_batch", Config: "backend: \"python\"\nmax_batch_size: 0\n" + "input { name: \"A\" data_type: TYPE_FP32 dims: 1 reshape { } }\n" + out, Want: "/config.pbtxt:3: input \"A\" is reshaped to no dimension, which needs max_batch_size above 0"},
		{Name: "no_dims", Config: head + "input { name: \"A\" data_type: TYPE_FP32 }\n" + out, Want: "/config.pbtxt:3: input \"A\" has no dims; a scalar is dims: [ 1 ] with an empty reshape"},
		{Name: "no_tensor_name", Config: head + "input { data_type: TYPE_FP32 dims: 4 }\n" + out, Want: "/config.pbtxt:3: input 1 has no name"},
		{Name: "no_type", Config: head + in + "output [ {\n name: \"B\"\n dims: 4 } ]\n", Want: "/config.pbtxt:4: output \"B\" has no data_type"},
		{Name: "dimension_zero", Config: head + "input {\n  name: \"A\"\n  data_type: TYPE_FP32\n  # comment\n  dims: [ 4, 0 ]\n}\n" + out, Want: "/config.pbtxt:7: input \"A\" has dimension 0: write 1 or more, or -1 for a size that varies"},
		{Name: "dimension_negative", Config: head + in + "output { name: \"B\" data_type: TYPE_FP32 dims: -2 }\n", Want: "/config.pbtxt:4: output \"B\" has dimension -2: write 1 or more, or -1 for a size that varies"},
		{Name: "image_of_two_dims", Config: head + "input { name: \"A\" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 4, 4 ] }\n" + out, Want: "/config.pbtxt:3: input \"A\" is an image of FORMAT_NCHW and has 2 dims, not 3"},
		{Name: "image_of_a_reshape", Config: head + "input { name: \"A\" data_type: TYPE_FP32 format: FORMAT_NHWC dims: 48 reshape { shape: [ 4, 4, 3 ] } }\n" + out, Want: "/config.pbtxt:3: input \"A\" is an image of FORMAT_NHWC and has 1 dims, not 3"},
		{Name: "reshape_of_four_to_none", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 reshape { } }\n" + out, Want: "/config.pbtxt:3: input \"A\" has dims [4] and cannot be reshaped to []: the numbers of elements differ, before, between or after the sizes that vary"},
		{Name: "reshape_moves_a_free_size", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 2, -1, 2 ] } }\n" + out, Want: "/config.pbtxt:3: input \"A\" has dims [-1 4] and cannot be reshaped to [2 -1 2]: the numbers of elements differ, before, between or after the sizes that vary"},
		{Name: "labels_are_a_directory", Config: head + in + "output { name: \"B\" data_type: TYPE_FP32 dims: 4 label_filename: \"labels\" }\n", Files: map[string]string{"1/model.py": Python, "labels/": ""}, Want: "/config.pbtxt:4: label file \"labels\" is a directory", Kills: true},
		{Name: "shape_tensor", Config: head + "input { name: \"A\" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true }\n" + out, Want: "/config.pbtxt:3: input \"A\" is a shape tensor, which only TensorRT has"},
		{Name: "shape_tensor_out", Config: head + in + "output { name: \"B\" data_type: TYPE_INT32 dims: 4 is_shape_tensor: true }\n", Want: "/config.pbtxt:4: output \"B\" is a shape tensor, which only TensorRT has"},
		{Name: "non_linear", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 is_non_linear_format_io: true }\n" + out, Want: "/config.pbtxt:3: input \"A\" has a non-linear format, which only TensorRT has"},
		{Name: "no_labels", Config: head + in + "output { name: \"B\" data_type: TYPE_FP32 dims: 4 label_filename: \"labels.txt\" }\n", Want: "/config.pbtxt:4: label file \"labels.txt\" cannot be read: no such file or directory"},

		// Derived tensors.
		{Name: "batch_input_of_two_sources", Config: whole + "batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"N\" data_type: TYPE_FP32 source_input: \"A\" source_input: \"A\" }\n", Want: "/config.pbtxt:5: batch_input of kind BATCH_ELEMENT_COUNT has 2 source_input, and needs 1"},
		{Name: "batch_input_of_no_source", Config: whole + "batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"N\" data_type: TYPE_FP32 }\n", Want: "/config.pbtxt:5: batch_input of kind BATCH_ELEMENT_COUNT has 0 source_input, and needs 1"},
		{Name: "batch_input_of_an_unknown_source", Config: whole + "batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"N\" data_type: TYPE_FP32 source_input: \"Z\" }\n", Want: "/config.pbtxt:5: batch_input: source_input \"Z\" is no input of the model"},
		{Name: "batch_input_of_a_type", Config: whole + "batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"N\" data_type: TYPE_STRING source_input: \"A\" }\n", Want: "/config.pbtxt:5: batch_input has data_type TYPE_STRING: it can be TYPE_INT32 or TYPE_FP32"},
		{Name: "batch_output_of_no_source", Config: whole + "batch_output { target_name: \"B\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE }\n", Want: "/config.pbtxt:5: batch_output of kind BATCH_SCATTER_WITH_INPUT_SHAPE has 0 source_input, and needs 1"},
		{Name: "batch_output_of_an_unknown_source", Config: whole + "batch_output { target_name: \"B\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"Z\" }\n", Want: "/config.pbtxt:5: batch_output: source_input \"Z\" is no input of the model"},
		{Name: "batch_output_of_an_unknown_target", Config: whole + "batch_output { target_name: \"Z\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"A\" }\n", Want: "/config.pbtxt:5: batch_output: target_name \"Z\" is no output of the model"},

		// Instances.
		{Name: "batch_output_of_no_target", Config: whole + "batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"A\" }\n", Want: "/config.pbtxt:5: batch_output has no target_name", Kills: true},
		{Name: "batch_output_of_one_target_twice", Config: whole + "batch_output { target_name: \"B\" target_name: \"B\" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: \"A\" }\n", Want: "/config.pbtxt:5: batch_output: target_name \"B\" is there twice"},
		{Name: "gpus_of_a_cpu", Config: whole + "instance_group { kind: KIND_CPU gpus: 0 }\n", Want: "/config.pbtxt:5: instance_group is KIND_CPU and lists gpus"},
		{Name: "gpus_of_kind_model", Config: whole + "instance_group { kind: KIND_MODEL gpus: 0 }\n", Want: "/config.pbtxt:5: instance_group is KIND_MODEL and lists gpus"},
		{Name: "profile_of_a_cpu", Config: whole + "instance_group { kind: KIND_CPU profile: \"0\" }\n", Want: "/config.pbtxt:5: instance_group has a profile, which only TensorRT has"},

		// Schedulers.
		{Name: "preferred_beyond_the_batch", Config: whole + "dynamic_batching {\n  preferred_batch_size: [ 4, 16 ]\n}\n", Want: "/config.pbtxt:6: dynamic_batching: preferred_batch_size 16 is not in 1..8, the max_batch_size"},
		{Name: "preferred_zero", Config: whole + "dynamic_batching { preferred_batch_size: 0 }\n", Want: "/config.pbtxt:5: dynamic_batching: preferred_batch_size 0 is not in 1..8, the max_batch_size"},
		{Name: "priority_without_a_default", Config: whole + "dynamic_batching { priority_levels: 2 }\n", Want: "/config.pbtxt:5: dynamic_batching: default_priority_level 0 is not in 1..2, the priority_levels"},
		{Name: "priority_default_beyond", Config: whole + "dynamic_batching { priority_levels: 2 default_priority_level: 3 }\n", Want: "/config.pbtxt:5: dynamic_batching: default_priority_level 3 is not in 1..2, the priority_levels"},
		{Name: "priority_policy_beyond", Config: whole + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }\n", Want: "/config.pbtxt:5: dynamic_batching: priority_queue_policy of level 3, which is not in 1..2, the priority_levels"},
		{Name: "priority_and_order", Config: whole + "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }\n", Want: "/config.pbtxt:5: dynamic_batching: preserve_ordering cannot be had with more than one priority level"},
		{Name: "cache_of_a_decoupled_model", Config: whole + "model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }\n", Want: "/config.pbtxt:6: response_cache is enabled, and the model is decoupled: Triton has no cache for such models"},
		{Name: "control_without_values", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START } } }\n", Want: "/config.pbtxt:5: CONTROL_SEQUENCE_START needs int32_false_true, fp32_false_true or bool_false_true"},
		{Name: "control_of_two_types", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ] } } }\n", Want: "/config.pbtxt:5: CONTROL_SEQUENCE_START has more than one of int32_false_true, fp32_false_true and bool_false_true"},
		{Name: "control_of_one_value", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 1 ] } } }\n", Want: "/config.pbtxt:5: CONTROL_SEQUENCE_START has 1 values, and needs 2: for false and for true"},
		{Name: "control_twice", Config: whole + "sequence_batching {\n  control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n  control_input { name: \"T\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n}\n", Want: "/config.pbtxt:7: two control inputs are CONTROL_SEQUENCE_START"},
		{Name: "control_without_a_name", Config: whole + "sequence_batching { control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n", Want: "/config.pbtxt:5: control_input 1 has no name"},
		{Name: "control_correlation_without_a_type", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_CORRID } } }\n", Want: "/config.pbtxt:5: CONTROL_SEQUENCE_CORRID has data_type TYPE_INVALID: it can be TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING"},
		{Name: "control_correlation_of_a_type", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }\n", Want: "/config.pbtxt:5: CONTROL_SEQUENCE_CORRID has data_type TYPE_FP32: it can be TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING"},
		{Name: "sequence_preferred_beyond", Config: whole + "sequence_batching { oldest { preferred_batch_size: 16 } }\n", Want: "/config.pbtxt:5: sequence_batching: preferred_batch_size 16 is not in 1..8, the max_batch_size"},
		{Name: "sequence_of_no_batch_preferred", Config: strings.Replace(whole, "8", "0", 1) + "sequence_batching { oldest { preferred_batch_size: 1 } }\n", Want: "/config.pbtxt:5: sequence_batching: preferred_batch_size 1 is not in 1..0, the max_batch_size"},
		{Name: "sequence_preferred_zero", Config: whole + "sequence_batching { oldest { preferred_batch_size: 0 } }\n", Want: "/config.pbtxt:5: sequence_batching: preferred_batch_size 0 is not in 1..8, the max_batch_size"},
		{Name: "sequence_slots_beyond_one", Config: whole + "sequence_batching { direct { minimum_slot_utilization: 2 } }\n", Want: "/config.pbtxt:5: sequence_batching: minimum_slot_utilization is 2, and can be at most 1"},
		{Name: "control_correlation_of_a_boolean", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ] } } }\n", Want: "/config.pbtxt:5: CONTROL_SEQUENCE_CORRID is a number or a string, and has values for false and true"},
		{Name: "state_begins_with_other_dims", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 initial_state { name: \"i\" data_type: TYPE_FP32 dims: 5 zero_data: true } } }\n", Want: "/config.pbtxt:5: initial_state of \"I\" has dims [5], and the state has [4]"},
		{Name: "state_begins_without_a_name", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 initial_state { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n", Want: "/config.pbtxt:5: initial_state of \"I\" has no name"},
		{Name: "state_begins_with_nothing", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 initial_state { name: \"i\" data_type: TYPE_FP32 dims: 4 } } }\n", Want: "/config.pbtxt:5: initial_state of \"I\" has neither zero_data nor data_file"},
		{Name: "state_begins_with_a_free_size", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: -1 initial_state { name: \"i\" data_type: TYPE_FP32 dims: -1 zero_data: true } } }\n", Want: "/config.pbtxt:5: initial_state of \"I\" has dims [-1]: its sizes cannot vary"},
		{Name: "state_with_two_beginnings", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 initial_state { name: \"i\" data_type: TYPE_FP32 dims: 4 zero_data: true } initial_state { name: \"j\" data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n", Want: "/config.pbtxt:5: state \"I\" has 2 initial_state, and can have one"},
		{Name: "state_file_not_there", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 initial_state { name: \"i\" data_type: TYPE_FP32 dims: 4 data_file: \"zeros\" } } }\n", Want: "/config.pbtxt:5: file initial_state/zeros of initial_state cannot be read: no such file or directory"},
		{Name: "state_begins_with_another_type", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 initial_state { name: \"i\" data_type: TYPE_INT32 dims: 4 zero_data: true } } }\n", Want: "/config.pbtxt:5: initial_state of \"I\" is TYPE_INT32, and the state is TYPE_FP32"},

		// Warm-up.
		{Name: "warmup_without_data", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" has neither zero_data nor random_data nor input_data_file"},
		{Name: "warmup_of_another_tensor", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"Z\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\" has no input \"A\", which is not optional"},
		{Name: "warmup_of_another_type", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_INT32 dims: 4 zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" is TYPE_INT32, and the model's is TYPE_FP32"},
		{Name: "warmup_without_inputs", Config: whole + "model_warmup { name: \"w\" batch_size: 1 }\n", Want: "/config.pbtxt:5: model_warmup \"w\" has no input \"A\", which is not optional"},
		{Name: "warmup_beyond_the_batch", Config: whole + "model_warmup { name: \"w\" batch_size: 9 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\" has batch_size 9, and max_batch_size is 8"},
		{Name: "warmup_file_not_there", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 input_data_file: \"a\" } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" has the file warmup/a, which cannot be read: no such file or directory"},
		{Name: "warmup_of_a_free_size", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: -1 }\n" + out + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" has dims [-1]: the sizes of a warm-up cannot vary"},

		{Name: "warmup_of_other_dims", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 5 zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" has dims [5], and the model's has [4]"},
		{Name: "warmup_of_another_rank", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: [ 1, 4 ] zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" has dims [1 4], and the model's has [4]"},
		{Name: "warmup_without_dims", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 zero_data: true } } }\n", Want: "/config.pbtxt:5: model_warmup \"w\": input \"A\" has dims [], and the model's has [4]"},
		{Name: "warmup_file_too_short", Config: whole + "model_warmup {\n  name: \"w\"\n  batch_size: 1\n  inputs {\n    key: \"A\"\n    value { data_type: TYPE_FP32 dims: 4 input_data_file: \"a\" }\n  }\n}\n", Files: map[string]string{"1/model.py": Python, "warmup/a": "123"}, Want: "/config.pbtxt:10: model_warmup \"w\": input \"A\" needs 16 bytes, and warmup/a has 3"},

		// Versions.
		{Name: "no_version", Config: whole, Files: map[string]string{"one/model.py": Python}, Want: ": no version directory; make one named by a number, such as 1"},
		{Name: "version_with_a_zero", Config: whole, Files: map[string]string{"01/model.py": Python}, Want: ": no version directory; make one named by a number, such as 1"},
		{Name: "version_not_there", Config: whole + "version_policy { specific { versions: 7 } }\n", Want: "/config.pbtxt:5: version_policy asks for [7], and there is no such directory"},
		{Name: "version_latest_empty", Config: whole + "version_policy { latest { } }\n", Want: "/config.pbtxt:5: version_policy asks for the latest 0 versions; say num_versions: 1 or more"},
		{Name: "version_of_a_backup", Config: whole, Files: map[string]string{"1/model.py": Python, "2.bak/model.py": Python}, Want: "/2.bak: Triton takes the number at the front of the name for version 2", Hangs: true},
		{Name: "version_with_a_sign", Config: whole, Files: map[string]string{"+1/model.py": Python}, Want: "/+1: Triton takes the number at the front of the name for version 1", Hangs: true},
		{Name: "version_too_large_beside_one", Config: whole, Files: map[string]string{"1/model.py": Python, "20261122093000123456/notes": ""}, Want: "/20261122093000123456: the number at the front of the name is too large for a version", Kills: true},
		{Name: "no_files", Config: whole, Files: map[string]string{}, Want: ": no version directory; make one named by a number, such as 1"},
		{Name: "version_without_a_file", Config: whole, Files: map[string]string{"1/readme": ""}, Want: "/1: model.py is missing; Triton would never finish loading the model", Hangs: true},
		{Name: "version_is_a_file", Config: whole, Files: map[string]string{"1": Python}, Want: ": no version directory; make one named by a number, such as 1"},
		{Name: "version_negative", Config: whole, Files: map[string]string{"-1/model.py": Python}, Want: "/-1: Triton takes the number at the front of the name for version -1, and no version is below 0: rename it", Hangs: true},
		{Name: "version_beyond_64_bits", Config: whole, Files: map[string]string{"99999999999999999999/model.py": Python}, Want: "/99999999999999999999: the number at the front of the name is too large for a version", Kills: true},
		{Name: "version_none_specified", Config: whole + "version_policy { specific { } }\n", Want: "/config.pbtxt:5: version_policy asks for [], and there is no such directory"},
		{Name: "version_latest_zero", Config: whole + "version_policy { latest { num_versions: 0 } }\n", Want: "/config.pbtxt:5: version_policy asks for the latest 0 versions; say num_versions: 1 or more"},
		{Name: "file_of_another_name", Config: whole + "default_model_filename: \"other.py\"\n", Want: "/1: other.py is missing; Triton would never finish loading the model", Hangs: true},
		{Name: "file_is_a_directory", Config: whole, Files: map[string]string{"1/model.py/": ""}, Want: "/1/model.py: is a directory, and has to be a file of Python"},
		{Name: "file_link_to_nowhere", Config: whole, Files: map[string]string{"1/model.py": "-> ../gone.py"}, Want: "/1: model.py is missing; Triton would never finish loading the model", Hangs: true},
		{Name: "version_policy_of_all_one_empty", Config: whole + "version_policy { all { } }\n", Files: map[string]string{"1/model.py": Python, "2/": ""}, Want: "/2: model.py is missing; Triton would never finish loading the model", Hangs: true},
		{Name: "environment_not_there", Config: whole + "parameters { key: \"EXECUTION_ENV_PATH\" value { string_value: \"$$TRITON_MODEL_DIRECTORY/env.tar.gz\" } }\n", Want: "/config.pbtxt:5: parameter EXECUTION_ENV_PATH: env.tar.gz: cannot be read: no such file or directory"},

		{Name: "memory_of_cpu_perhaps", Config: whole + "parameters { key: \"slo_ms\" value { string_value: \"20\" } }\nparameters {\n  key: \"FORCE_CPU_ONLY_INPUT_TENSORS\"\n  value { string_value: \"maybe\" }\n}\n", Want: "/config.pbtxt:6: parameter FORCE_CPU_ONLY_INPUT_TENSORS is \"maybe\": write yes or no"},
		{Name: "resources_negative", Config: whole + "instance_group { kind: KIND_CPU rate_limiter { resources { name: \"r\" count: -3 } } }\n", Want: "/config.pbtxt:5: invalid value for uint32 type: -3"},

		// Ensembles.
		{Name: "ensemble_without_scheduling", Config: ensemble(""), Want: "/config.pbtxt:1: platform is ensemble, and there is no ensemble_scheduling"},
		{Name: "ensemble_without_steps", Config: ensemble("ensemble_scheduling { }\n"), Want: "/config.pbtxt:5: the ensemble has no step"},
		{Name: "steps_without_ensemble", Config: whole + steps(step("helper_step", a, b)), Want: "/config.pbtxt:5: ensemble_scheduling needs platform: \"ensemble\""},
		{Name: "ensemble_of_instances", Config: ensemble(steps(step("helper_step", a, b)) + "instance_group { count: 1 }\n"), Want: "/config.pbtxt:8: an ensemble has no instances; remove instance_group"},
		{Name: "ensemble_step_of_no_model", Config: ensemble("ensemble_scheduling {\n  step { " + a + " " + b + " }\n}\n"), Want: "/config.pbtxt:6: step 1 of the ensemble names no model"},
		{Name: "ensemble_step_unknown", Config: ensemble(steps(step("helper_gone", a, b))), Want: "/config.pbtxt:6: step 1 of the ensemble calls model \"helper_gone\", which the repository does not have"},
		{Name: "ensemble_step_not_fed", Config: ensemble(steps(step("helper_step", "", b))), Want: "/config.pbtxt:6: step 1 of the ensemble has no input_map"},
		{Name: "ensemble_step_without_results", Config: ensemble(steps(step("helper_step", a, ""))), Want: "/config.pbtxt:6: step 1 of the ensemble has no output_map"},
		{Name: "ensemble_input_unknown", Config: ensemble(steps(step("helper_step", "input_map { key: \"Z\" value: \"A\" }", b))), Want: "/config.pbtxt:6: step 1 of the ensemble does not say where input \"A\" of model \"helper_step\" comes from"},
		{Name: "ensemble_output_unknown", Config: ensemble(steps(step("helper_step", a, "output_map { key: \"Z\" value: \"B\" }"))), Want: "/config.pbtxt:6: step 1 of the ensemble maps output \"Z\", which model \"helper_step\" does not have"},
		{Name: "ensemble_tensor_of_nobody", Config: ensemble(steps(step("helper_step", "input_map { key: \"A\" value: \"nobody\" }", b))), Want: "/config.pbtxt:3: no step uses input \"A\" of the ensemble"},
		{Name: "ensemble_output_of_nobody", Config: ensemble(steps(step("helper_step", a, "output_map { key: \"B\" value: \"C\" }"))), Want: "/config.pbtxt:4: no step makes output \"B\" of the ensemble"},
		{Name: "ensemble_tensor_of_two", Config: ensemble(steps(step("helper_step", a, b), step("helper_step", a, b))), Want: "/config.pbtxt:7: step 2 of the ensemble makes tensor \"B\", which another step makes"},
		{Name: "ensemble_of_other_types", Config: ensemble(steps(step("helper_text", a, b))), Want: "/config.pbtxt:6: tensor \"A\" is TYPE_FP32 for ensemble_of_other_types and TYPE_STRING for helper_text"},
		{Name: "ensemble_of_other_dims", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + "input { name: \"A\" data_type: TYPE_FP32 dims: 5 }\n" + out + steps(step("helper_step", a, b)), Want: "/config.pbtxt:6: tensor \"A\" has dims [5] for ensemble_of_other_dims and [4] for helper_step"},
		{Name: "ensemble_of_a_smaller_batch", Config: ensemble(steps(step("helper_small", a, b))), Want: "/config.pbtxt:6: step 1 of the ensemble calls model \"helper_small\", whose max_batch_size is 2, and the ensemble's is 8"},
		{Name: "ensemble_of_itself", Config: ensemble(steps(step("ensemble_of_itself", a, b))), Want: "/config.pbtxt:5: the ensemble calls itself: ensemble_of_itself calls ensemble_of_itself"},
		{Name: "ensemble_of_a_circle", Config: ensemble(steps(step("helper_step", "input_map { key: \"A\" value: \"y\" }", "output_map { key: \"B\" value: \"x\" }"), step("helper_step", "input_map { key: \"A\" value: \"x\" }", "output_map { key: \"B\" value: \"y\" }"), step("helper_step", a, b))), Want: "/config.pbtxt:7: tensor \"x\" waits for itself: the steps that make it go in a circle"},
		{Name: "ensemble_version_not_there", Config: ensemble("ensemble_scheduling {\n  step { model_name: \"helper_step\" model_version: 7 " + a + " " + b + " }\n}\n"), Want: "/config.pbtxt:6: step 1 of the ensemble calls version 7 of model \"helper_step\", which is not served; write model_version: -1 for the latest"},
		{Name: "ensemble_input_unused", Config: ensemble("input { name: \"C\" data_type: TYPE_FP32 dims: 4 }\n" + steps(step("helper_step", a, b))), Want: "/config.pbtxt:5: no step uses input \"C\" of the ensemble"},
		{Name: "ensemble_step_half_fed", Config: ensemble(steps(step("helper_two_in", a, b))), Want: "/config.pbtxt:6: step 1 of the ensemble does not say where input \"C\" of model \"helper_two_in\" comes from"},
		{Name: "ensemble_tensor_unused", Config: ensemble(steps(step("helper_two_out", a, b+" output_map { key: \"D\" value: \"spare\" }"))), Want: "/config.pbtxt:6: no step uses tensor \"spare\"; leave it out of the output_map"},
		{Name: "ensemble_of_other_ranks", Config: strings.ReplaceAll(ensemble(steps(step("helper_step", a, b))), "dims: 4", "dims: [ 4, 1 ]"), Want: "/config.pbtxt:6: tensor \"A\" has dims [4 1] for ensemble_of_other_ranks and [4] for helper_step"},
		{Name: "ensemble_version_not_said", Config: ensemble("ensemble_scheduling {\n  step { model_name: \"helper_step\" " + a + " " + b + " }\n}\n"), Want: "/config.pbtxt:6: step 1 of the ensemble calls version 0 of model \"helper_step\", which is not served; write model_version: -1 for the latest"},
		{Name: "ensemble_of_a_refused_model", Config: ensemble(steps(step("batch_negative", a, b))), Want: "/config.pbtxt:6: step 1 of the ensemble calls model \"batch_negative\", which Triton would refuse"},
		{Name: "ensemble_of_a_refused_ensemble", Config: ensemble(steps(step("ensemble_of_a_refused_model", a, b))), Want: "/config.pbtxt:6: step 1 of the ensemble calls model \"ensemble_of_a_refused_model\", which Triton would refuse"},
		{Name: "ensemble_without_a_version", Config: ensemble(steps(step("helper_step", a, b))), Files: map[string]string{"README.md": ""}, Want: ": no version directory; make one named by a number, such as 1"},
		{Name: "ensemble_of_a_backend", Config: "backend: \"python\"\n" + ensemble(steps(step("helper_step", a, b))), Want: "/config.pbtxt:1: an ensemble has no backend; remove it, platform: \"ensemble\" says all"},
	}
}
