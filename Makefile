.PHONY: npu-check

npu-check: # on a machine with an Ascend NPU; docs/npu.md
	python3 -m bench.npu_check
