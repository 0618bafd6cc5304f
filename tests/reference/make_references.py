"""Gold standards by numpyro, stored beside this file so that the tests need no JAX.

    python -m venv jax && jax/bin/pip install numpyro scikit-learn && jax/bin/python tests/reference/make_references.py

- `breast_cancer_nuts.json`: Bayesian logistic regression on scikit-learn's breast cancer data, features standardized,
  independent N(0, 1) priors on the 30 weights and the intercept; NUTS.
- `digits_mlp_hmc.json`: an MLP 64-12-10 with tanh (910 weights, N(0, 1) priors) on the first 400 training digits of
  `langevin.data.digits`; predictions on the 360 test digits by long full-batch HMC.
"""

import json
import sys
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import numpyro  # noqa: E402
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin  # noqa: E402
from numpyro.infer import HMC, MCMC, NUTS  # noqa: E402
from sklearn.datasets import load_breast_cancer, load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

HERE = Path(__file__).parent


def save(name, **values):
    versions = {"numpyro": numpyro.__version__, "jax": jax.__version__}
    (HERE / name).write_text(json.dumps({"made_by": "make_references.py", "versions": versions, **values}) + "\n")
    print(name, {key: value for key, value in values.items() if np.size(value) == 1})


def breast_cancer():
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)

    def energy(theta):
        logits = x @ theta[:30] + theta[30]
        return jnp.sum(jax.nn.softplus(logits) - y * logits) + 0.5 * jnp.sum(theta**2)

    mcmc = MCMC(
        NUTS(potential_fn=energy), num_warmup=2000, num_samples=10_000, num_chains=4, chain_method="sequential",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(0), init_params=jnp.zeros((4, 31)))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    ess = effective_sample_size(draws)
    save(
        "breast_cancer_nuts.json",
        mean=draws.mean((0, 1)).tolist(),
        std=draws.std((0, 1)).tolist(),
        smallest_ess=float(ess.min()),
        largest_rhat=float(split_gelman_rubin(draws).max()),
    )


def digits():
    bunch = load_digits()
    train, test = train_test_split(range(1797), test_size=360, random_state=0, stratify=bunch.target)
    train = train[:400]
    scaled = (bunch.data / 16 - 0.3054) / 0.3761  # as langevin.data.digits does
    x, y, test_x = scaled[train], bunch.target[train], scaled[test]
    sizes = [("w1", (12, 64)), ("b1", (12,)), ("w2", (10, 12)), ("b2", (10,))]
    count = sum(int(np.prod(shape)) for _, shape in sizes)

    def logits(theta, inputs):
        parts, at = [], 0
        for _, shape in sizes:
            size = int(np.prod(shape))
            parts.append(theta[at : at + size].reshape(shape))
            at += size
        w1, b1, w2, b2 = parts
        return jnp.tanh(inputs @ w1.T + b1) @ w2.T + b2

    def energy(theta):
        log_p = jax.nn.log_softmax(logits(theta, x))
        return -jnp.sum(jnp.take_along_axis(log_p, y[:, None], 1)) + 0.5 * jnp.sum(theta**2)

    kernel = HMC(potential_fn=energy, step_size=0.02, trajectory_length=np.pi / 2 * 4, adapt_step_size=True,
                 target_accept_prob=0.8)  # fmt: skip
    chains, kept = 4, int(sys.argv[1]) if len(sys.argv) > 1 else 500
    mcmc = MCMC(kernel, num_warmup=200, num_samples=kept, num_chains=chains, chain_method="sequential",
                progress_bar=False)  # fmt: skip
    start = 0.3 * jax.random.normal(jax.random.PRNGKey(1), (chains, count))
    mcmc.run(jax.random.PRNGKey(0), init_params=start)
    draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    predict = jax.jit(jax.vmap(lambda theta: jax.nn.softmax(logits(theta, test_x))))
    probs = np.stack([np.asarray(predict(chain)) for chain in draws])  # chains, samples, inputs, classes
    half = probs.mean(1)
    total_variation = np.abs(half[:2].mean(0) - half[2:].mean(0)).sum(1).mean() / 2
    labels = bunch.target[test]
    mean = probs.mean((0, 1))
    save(
        "digits_mlp_hmc.json",
        probs=np.round(mean, 5).tolist(),
        samples=chains * kept,
        rhat_of_probabilities=float(np.nanquantile(split_gelman_rubin(probs.reshape(chains, kept, -1)), 0.99)),
        total_variation_between_halves=float(total_variation),
        agreement_between_halves=float((half[:2].mean(0).argmax(1) == half[2:].mean(0).argmax(1)).mean()),
        accuracy=float((mean.argmax(1) == labels).mean()),
    )


if __name__ == "__main__":
    breast_cancer()
    digits()
