// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/conch-serving/conch/internal/figure"

// differences say where the figures of reproduce and what was published are not the same, and why. Each was looked for in the simulator: the rows
// that are named show the effect alone.
func differences() []figure.Remark {
	return []figure.Remark{
		{
			About: "Symphony's own scheduler with other rules",
			Text: "Its eager, target and timeout-drop figures were measured with its default delays, not without. It keeps 2 ms of every deadline back for the response, and 100 us and 50 us a request " +
				"before a start. The `budget` rows take that off the SLO: they give what it gave, while without it eager seems to hold 1.19 times as much on InceptionResNetV2 (`table2` rows). A short batch of eager has " +
				"little slack to lose, so it loses most. The overload figures, 4% below ours throughout, have the same delays. That these runs had them was not written down; it follows from the agreement.",
		},
		{
			About: "Clockwork",
			Text: "The rule alone, earliest latest moment first, holds 3.2 times what the paper measured of Clockwork on ResNet50. Two constants of Clockwork's published controller (`src/clockwork/controller/infer5`) are the rest: it " +
				"decides what a GPU runs 10 ms before the GPU is free (`schedule_ahead`), when few requests are there yet, and it aims at 5 ms before the deadline (`buffer`). It also gives up heads whenever those behind make a larger batch. " +
				"The `clockwork_ahead` rows have these three and nothing else, and come to the paper's goodput and to its median batch of 1 for both models. The constants are made for SLOs of 100 ms, which is " +
				"why 25 ms suffer most. `earliest-latest` stays the rule without them: they are properties of that controller, not of the rule. It has Clockwork's batch sizes, powers of two; `clockwork_ahead` has any size, as the paper's authors gave Clockwork for their comparison.",
		},
		{
			About: "Nexus",
			Text: "Nexus deals requests out to GPUs before they queue. The `duty_cycle_dealt` rows do so: in turn they come near the paper, at random they are far below, because a GPU with a queue of its own has nobody to even out a cluster of arrivals. " +
				"Under `duty-cycle` all GPUs share one queue, which holds more still. Before, it held .52 of the paper's on InceptionResNetV2, which was a fault of the discipline: it took a model that fills " +
				"seven GPUs for a residue on each, and planned batches of 2 where squishy bin packing gives a saturated GPU its batch of 3.",
		},
		{
			About: "Shepherd",
			Text:  "The paper had Shepherd's scheduler written anew from its pseudocode. Here a preemption costs the lost work and nothing else, and no message takes time. Both are in its favour; how much of the difference each is was not separated.",
		},
		{
			About: "Timeouts, figure 6b",
			Text: "The paper's variant waits for a + k even when nothing can join the batch any more, so that long timeouts let batches expire. `timeout` is Triton's rule, which starts a full batch; a batch whose deadline admits no " +
				"further request counts as full here. With one model, long timeouts therefore do not fall behind. With 37 models they do, as in the paper: a batch that waits for its timeout finds the GPUs taken. " +
				"The paper does not say which ResNet50 it took; here it is table 2's.",
		},
		{
			About: "Mixed zoos, figure 9",
			Text: "The paper compares systems, these rows rules. Against the best rule of the three systems, deferred wins little (`deferred.of_best_system`), because earliest latest moment first without planning ahead is a good rule. Against the " +
				"duty cycle alone the gap is as wide as the paper says, against flex it is narrower where batching is strong. Duty cycles suffer from having every model on every GPU, where Nexus's plan would pack them. And on mixed loads eager with prefix drop holds more than deferred: " +
				"the paper compares with eager under window drop only. The gather bound leaves nobody more than some 6% on the A100 mix.",
		},
		{
			About: "Table 1",
			Text: "The 5,880 workloads are sampled: each of the six models with SLOs of 20, 30 and 50 ms, 8 copies on 8, 16 and 32 GPUs, Gamma .1 and Poisson, and the 35 models of table 3; one seed each. The paper has deferred at .95 of eager or " +
				"more in almost all of its workloads; here it is only so in about half. They are not the same workloads: 8 copies are the least of the paper's range of 8 to 64, and with as many GPUs as models, deferring loses among few where it wins among many " +
				"(`few` rows). It also falls behind with arrivals of Gamma .1, more so with long SLOs, and that remains unexplained: nothing in the paper's text tells its eager from ours. " +
				"With Poisson arrivals and four GPUs a model it holds the paper's .95 throughout. Against eager with prefix drop, which the paper has not, it does less well.",
		},
		{
			About: "Offline references",
			Text: "Both searches drop the head or start the next b requests on the GPU that is free first, and keep the schedules with the least GPU time left and the fewest drops. The one that knows only the rate used to plan for 64 expected requests and to " +
				"deal with all of them, so that its last batch had to end with the last of them; that dictated the end of every batch before, and it dropped 2.5% at 5,476 req/s. A plan may now end in the midst of a batch, and looks 128 requests ahead. " +
				"The one that knows all arrivals finds the same share of drops with beams of 12, 50 and 100 (within a fifth of a percent of the requests), so what the prototype's 5,750 req/s has above it is its run: on few requests, which begin with free GPUs and whose " +
				"rate is a percent up or down by chance, this search reaches that too (`clairvoyant_short`).",
		},
		{
			About: "Low load",
			Text:  "Idle shares of deferred below the peak are above (p-o)/p, because the paper's p, at which they are taken, is below what deferred holds here, and because at the peak GPUs are not quite always busy.",
		},
	}
}
