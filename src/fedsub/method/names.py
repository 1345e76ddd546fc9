"""How names of methods are compared, whoever writes them."""


def normal(name: str) -> str:
    """A method's name as the catalogue spells it: "L2SGD+" is l2sgd_plus, "AL2SGD+" al2sgd_plus."""
    return name.strip().lower().replace("+", "_plus").replace("-", "_").replace(" ", "_")
