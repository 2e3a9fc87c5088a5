"""speculators' own trainer on a host without a GPU: `python -m eagle3.remote.cpu_trainer <arguments of its train>`.

speculators 0.9.0 takes an accelerator for granted in three places; this puts the CPU there and changes nothing else.
With CUDA it is exactly `python -m speculators.train`.
"""

from eagle3.remote.step import device_type


def _use_cpu() -> None:
    import torch
    from speculators.train import checkpointer, cli
    from speculators.train.trainer import Trainer

    class CpuTrainer(Trainer):
        """Keeps the model, its batches and autocast on the CPU."""

        def setup_trainer(self) -> None:
            self.local_rank = torch.device("cpu")
            self.device_type = "cpu"
            super().setup_trainer()

    cli.Trainer = CpuTrainer
    checkpointer.get_current_device = lambda: "cpu"  # where a resumed checkpoint is loaded to
    torch.accelerator.synchronize = lambda *_: None  # there is nothing to wait for


def main() -> None:
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    if device_type() == "cpu":
        _use_cpu()
    cli.main(TrainConfig.resolve())


if __name__ == "__main__":
    main()
