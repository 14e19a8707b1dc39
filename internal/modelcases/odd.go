// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package modelcases

import "strings"

// Odd are models that look wrong, or unusual, and that a Triton loads.
func Odd() []Case {
	const a, b = "input_map { key: \"A\" value: \"A\" }", "output_map { key: \"B\" value: \"B\" }"
	// answering is for warm-ups, which want an answer.
	const answering = "import numpy\nimport triton_python_backend_utils as pb\n\nclass TritonPythonModel:\n    def execute(self, requests):\n" +
		"        return [pb.InferenceResponse([pb.Tensor(\"B\", numpy.zeros([1, 4], numpy.float32))]) for _ in requests]\n"
	answers := map[string]string{"1/model.py": answering}
	return []Case{
		// The text.
		{Name: "single_quotes", Config: strings.ReplaceAll(whole, "\"", "'")},
		{Name: "angle_brackets", Config: head + "input < name: \"A\" data_type: TYPE_FP32 dims: 4 >\n" + out},
		{Name: "commas_and_semicolons", Config: "backend: \"python\"; max_batch_size: 8,\ninput { name: \"A\", data_type: TYPE_FP32; dims: 4 }\n" + out},
		{Name: "carriage_returns", Config: strings.ReplaceAll(whole, "\n", "\r\n")},
		{Name: "one_line", Config: strings.ReplaceAll(strings.TrimSuffix(whole, "\n"), "\n", " ")},
		{Name: "colon_before_a_message", Config: head + "input: { name: \"A\" data_type: TYPE_FP32 dims: 4 }\noutput: [ { name: \"B\" data_type: TYPE_FP32 dims: 4 } ]\n"},
		{Name: "strings_in_pieces", Config: "backend: \"py\" \"thon\"\nmax_batch_size: 8\n" + in + out},
		{Name: "strings_with_escapes", Config: "backend: \"py\\164hon\"\nmax_batch_size: 8\n" + in + out},
		{Name: "numbers_in_hex", Config: "backend: \"python\"\nmax_batch_size: 0x8\ninput { name: \"A\" data_type: TYPE_FP32 dims: 04 }\n" + out},
		{Name: "enum_by_number", Config: head + "input { name: \"A\" data_type: 11 dims: 4 }\n" + out},
		{Name: "boolean_short", Config: whole + "model_transaction_policy { decoupled: t }\n"},
		{Name: "boolean_capital", Config: whole + "model_transaction_policy { decoupled: True }\n"},
		{Name: "boolean_number", Config: whole + "model_transaction_policy { decoupled: 1 }\n"},
		{Name: "comments_everywhere", Config: "# { \" [\n" + head + "input { # an input\n  name: \"A\" # ' \n  data_type: TYPE_FP32 dims: [ # four\n 4 ] }\n" + out + "# the end"},
		{Name: "list_in_pieces", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 2 dims: [ 2, 1 ] dims: 1 }\n" + out},
		{Name: "lists_empty", Config: whole + "instance_group [ ]\ndynamic_batching { preferred_batch_size: [ ] }\n"},
		{Name: "fields_in_any_order", Config: out + in + "max_batch_size: 8\nbackend: \"python\"\n"},
		{Name: "key_twice", Config: whole + "parameters { key: \"k\" value { string_value: \"1\" } }\nparameters { key: \"k\" value { string_value: \"2\" } }\n"},
		{Name: "no_space_at_all", Config: "backend:\"python\"max_batch_size:8 input{name:\"A\"data_type:TYPE_FP32 dims:4}output{name:\"B\"data_type:TYPE_FP32 dims:4}"},
		{Name: "minus_apart", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: - 1 }\n" + out},

		// What the model is.
		{Name: "backend_by_the_file", Config: "max_batch_size: 8\n" + in + out},
		{Name: "batch_not_said", Config: "backend: \"python\"\n" + in + out},
		{Name: "name_of_the_directory", Config: "name: \"name_of_the_directory\"\n" + whole},
		{Name: "a.name-with~marks+=,@%^[]{}:#x", Config: whole},
		{Name: "platform_beside_a_backend", Config: "platform: \"onnxruntime_onnx\"\n" + whole},
		{Name: "priority_of_an_optimizer", Config: whole + "optimization { priority: PRIORITY_MAX }\n"},
		{Name: "parameter_that_is_no_number", Config: whole + "parameters { key: \"shm-default-byte-size\" value { string_value: \"x\" } }\n"},
		{Name: "files_by_capability", Config: whole + "cc_model_filenames { key: \"7.5\" value: \"model.py\" }\n"},
		{Name: "linked_configuration", Files: map[string]string{"config.pbtxt": "-> other.pbtxt", "other.pbtxt": whole, "1/model.py": Python}},
		{Name: "parameters_of_nobody", Config: whole + "parameters { key: \"slo_ms\" value { string_value: \"20\" } }\nparameters { key: \"empty\" value { } }\n"},
		{Name: "no_parameter_value", Config: whole + "parameters { key: \"k\" }\n"},

		// Tensors.
		{Name: "no_inputs", Config: head + out},
		{Name: "no_outputs", Config: head + in},
		{Name: "inputs_of_one_name", Config: head + in + in + out},
		{Name: "output_of_an_inputs_name", Config: head + in + strings.Replace(out, "B", "A", 1)},
		{Name: "scalar", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 1 reshape { } }\n" + out},
		{Name: "image", Config: head + "input { name: \"A\" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 4, 4, 3 ] }\n" + out},
		{Name: "reshape_of_trunks", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, 2, 2 ] } }\n" + out},
		{Name: "reshape_of_ones_to_none", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { } }\n" + out},
		{Name: "optional_and_ragged", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 optional: true allow_ragged_batch: true }\n" + out},
		{Name: "labels_of_another_model", Config: head + in + "output { name: \"B\" data_type: TYPE_FP32 dims: 4 label_filename: \"../labels/labels.txt\" }\n"},
		{Name: "ragged_without_a_batch", Config: "backend: \"python\"\nmax_batch_size: 0\n" + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true }\n" + out},
		{Name: "batch_input_of_no_target", Config: whole + "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 source_input: \"A\" }\n"},
		{Name: "every_size_free", Config: head + "input { name: \"A\" data_type: TYPE_STRING dims: [ -1, -1 ] optional: true }\n" + out},
		{Name: "bfloat", Config: head + "input { name: \"A\" data_type: TYPE_BF16 dims: 4 }\n" + out},
		{Name: "labels", Config: head + in + "output { name: \"B\" data_type: TYPE_FP32 dims: 4 label_filename: \"labels.txt\" }\n", Files: map[string]string{"1/model.py": Python, "labels.txt": "a\nb\n"}},
		{Name: "ragged", Config: head + "input { name: \"A\" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true }\n" + out + "batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: \"N\" data_type: TYPE_FP32 source_input: \"A\" }\n"},

		// Schedulers and instances.
		{Name: "dynamic_batching_of_no_batch", Config: strings.Replace(whole, "8", "0", 1) + "dynamic_batching { }\n"},
		{Name: "priority_default_without_levels", Config: whole + "dynamic_batching { default_priority_level: 3 preserve_ordering: true }\n"},
		{Name: "instances_zero", Config: whole + "instance_group { kind: KIND_CPU count: 0 }\n"},
		{Name: "instances_of_one_name", Config: whole + "instance_group [ { name: \"i\" kind: KIND_CPU }, { name: \"i\" kind: KIND_CPU } ]\n"},
		{Name: "instances_passive", Config: whole + "instance_group { kind: KIND_CPU passive: true }\n"},
		{Name: "host_policy_of_nobody", Config: whole + "instance_group { kind: KIND_CPU host_policy: \"nobody\" }\n"},
		{Name: "decoupled_sequence", Config: whole + "model_transaction_policy { decoupled: true }\nsequence_batching { }\n"},
		{Name: "sequence_with_state", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } } state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 dims: 4 } }\n"},
		{Name: "cache_without_a_cache", Config: whole + "response_cache { enable: true }\n"},

		{Name: "instances_negative", Config: whole + "instance_group { kind: KIND_CPU count: -1 }\n"},
		{Name: "secondary_devices_of_a_cpu", Config: whole + "instance_group { kind: KIND_CPU secondary_devices { kind: KIND_NVDLA device_id: 0 } }\n"},
		{Name: "resource_twice_of_two_kinds", Config: whole + "instance_group { kind: KIND_CPU rate_limiter { resources { name: \"r\" global: true count: 1 } resources { name: \"r\" count: 1 } } }\n"},
		{Name: "state_without_a_type", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" dims: 4 } }\n"},
		{Name: "state_without_dims", Config: whole + "sequence_batching { state { input_name: \"I\" output_name: \"O\" data_type: TYPE_FP32 } }\n"},
		{Name: "state_without_a_name", Config: whole + "sequence_batching { state { output_name: \"O\" data_type: TYPE_FP32 dims: 4 } }\n"},
		{Name: "warmup_of_no_batch", Config: whole + "model_warmup { name: \"w\" inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n"},
		{Name: "state_without_an_output", Config: whole + "sequence_batching { state { input_name: \"I\" data_type: TYPE_FP32 dims: 4 } }\n"},
		{Name: "control_correlation_of_strings", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }\n"},
		{Name: "control_with_a_type", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START data_type: TYPE_INT32 int32_false_true: [ 0, 1 ] } } }\n"},
		{Name: "control_of_nothing", Config: whole + "sequence_batching { control_input { name: \"S\" } }\n"},
		{Name: "control_of_two_kinds", Config: whole + "sequence_batching { control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } } }\n"},
		{Name: "warmups_of_one_name", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\nmodel_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 random_data: true } } }\n", Files: answers},
		{Name: "warmup_of_more_inputs", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } inputs { key: \"Z\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n", Files: answers},
		{Name: "warmup_from_a_file", Config: whole + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 input_data_file: \"a\" } } }\n", Files: map[string]string{"1/model.py": answering, "warmup/a": "0123456789abcdef and more"}},
		{Name: "warmup_without_a_batch", Config: strings.Replace(whole, "8", "0", 1) + "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }\n", Files: answers},

		// Versions.
		{Name: "version_zero", Config: whole, Files: map[string]string{"0/model.py": Python}},
		{Name: "versions_with_gaps", Config: whole + "version_policy { all { } }\n", Files: map[string]string{"1/model.py": Python, "1000000/model.py": Python}},
		{Name: "an_older_version_empty", Config: whole, Files: map[string]string{"1/": "", "2/model.py": Python}},
		{Name: "one_of_the_specific_versions", Config: whole + "version_policy { specific { versions: [ 1, 9 ] } }\n"},
		{Name: "more_versions_than_there_are", Config: whole + "version_policy { latest { num_versions: 5 } }\n"},
		{Name: "version_of_a_day", Config: whole, Files: map[string]string{"20261122/model.py": Python}},
		{Name: "version_negative_beside_one", Config: whole, Files: map[string]string{"1/model.py": Python, "-1/model.py": Python}},
		{Name: "version_policy_empty", Config: whole + "version_policy { }\n"},
		{Name: "files_of_all_kinds", Config: whole, Files: map[string]string{"1/model.py": Python, "README.md": "", "docs/guide.md": "", "1.bak/model.py": "", ".hidden/1": "", "1/__pycache__/model.pyc": ""}},
		{Name: "linked_version", Config: whole, Files: map[string]string{"1": "-> weights", "weights/model.py": Python}},
		{Name: "linked_file", Config: whole, Files: map[string]string{"1/model.py": "-> ../shared.py", "shared.py": Python}},
		{Name: "file_of_a_chosen_name", Config: whole + "default_model_filename: \"serve.py\"\n", Files: map[string]string{"1/serve.py": Python}},
		{Name: "file_in_a_directory", Config: whole + "default_model_filename: \"src/serve.py\"\n", Files: map[string]string{"1/src/serve.py": Python}},

		// Ensembles.
		{Name: "ensemble_of_no_batch", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_one\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_without_a_batch", Config: "platform: \"ensemble\"\nmax_batch_size: 0\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_step\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_with_its_own_batch_dimension", Config: "platform: \"ensemble\"\nmax_batch_size: 0\n" + strings.ReplaceAll(in+out, "dims: 4", "dims: [ -1, 4 ]") + "ensemble_scheduling { step { model_name: \"helper_step\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_of_free_sizes", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_free\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_leaves_an_output", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_two_out\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_feeds_one_tensor_twice", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_two_in\" model_version: -1 " + a + " input_map { key: \"C\" value: \"A\" } " + b + " } }\n"},
		{Name: "ensemble_in_reverse", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling {\n  step { model_name: \"helper_step\" model_version: -1 input_map { key: \"A\" value: \"x\" } " + b + " }\n  step { model_name: \"helper_step\" model_version: -1 " + a + " output_map { key: \"B\" value: \"x\" } }\n}\n"},
		{Name: "ensemble_of_an_optional_input", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_optional\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_of_an_ensemble", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"ensemble_in_reverse\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_of_a_decoupled_model", Config: "platform: \"ensemble\"\nmax_batch_size: 8\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_decoupled\" model_version: -1 " + a + " " + b + " } }\n"},
		{Name: "ensemble_that_names_its_backend", Config: "backend: \"\"\nplatform: \"ensemble\"\nmax_batch_size: 4\n" + in + out + "ensemble_scheduling { step { model_name: \"helper_step\" model_version: 1 " + a + " " + b + " } }\n"},
	}
}
