"""langevin inside other libraries: scikit-learn, TensorBoard."""
